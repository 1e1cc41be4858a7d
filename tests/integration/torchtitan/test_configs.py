"""Configs, loaders and their errors, with torchtitan's real parts in a process of their own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.integration.torchtitan.titan_job import environment

SCRIPT = Path(__file__).with_name("scripts") / "config_checks.py"
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=processes.PROGRAM_TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_configs(outcomes: dict[str, str], check: str) -> None:
    assert not outcomes[check], outcomes[check]
