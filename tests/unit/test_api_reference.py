"""docs/api.md, which is made from the docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_api_reference_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/api_reference.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
