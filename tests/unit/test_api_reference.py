"""The pages of docs that are made from docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PROGRAM_TIMEOUT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["api_reference.py", "module_map.py"])
def test_a_page_is_up_to_date(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT)
    assert checked.returncode == 0, checked.stderr
