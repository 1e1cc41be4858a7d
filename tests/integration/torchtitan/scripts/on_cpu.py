"""Runs ``torchtitan.train`` with the words of a command line, whatever config they name, on a CPU.

on_cpu.py --module titan_configs --config debug …
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path.cwd()))
import cpu_device
from torchtitan.config import ConfigManager
from torchtitan.train import main

if __name__ == "__main__":
    parsed = ConfigManager.parse_args
    ConfigManager.parse_args = lambda manager: cpu_device.for_cpu(parsed(manager))
    main()
