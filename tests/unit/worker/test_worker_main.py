"""Whole scripts with one mistake in how they use ``elastic.run``, run as a worker runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import elastic_runtime as elastic
from elastic_runtime.worker import worker_main

_TOP = """
import sys, torch
import elastic_runtime as elastic
def train(world): pass
"""
_EARLY = "under elastic.run the groups exist only inside train(world)"


def _as_worker(folder: Path, body: str) -> tuple[int, dict[str, Any]]:
    """Runs a script as a cold worker of an agent that is away: its exit code and its error."""
    script, errors = folder / "script.py", folder / "error.json"
    script.write_text(_TOP + body)
    environ = {
        **os.environ,
        "ELASTIC_CHANNEL": str(folder / "nobody"),
        "TORCHELASTIC_ERROR_FILE": str(errors),
        "PYTHONPATH": str(Path(elastic.__file__).parent.parent),
    }
    command = [sys.executable, worker_main.__file__, "script", str(script)]
    code = subprocess.run(command, env=environ, cwd=folder, timeout=120, check=False).returncode
    return code, json.loads(errors.read_text())["message"] if errors.exists() else {}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("result = elastic.run(train)", "elastic.run(train) made a function that was never called"),
        ("result = elastic.run(train)\nsys.exit(0)", "made a function that was never called"),
        ("elastic.run(elastic.State())", "elastic.run(state) was given no function"),
        ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))", _EARLY),
    ],
)
def test_a_script_that_cannot_train_ends_with_a_usage_error(
    tmp_path: Path, body: str, told: str
) -> None:
    code, error = _as_worker(tmp_path, body)
    assert code == 1
    assert told in error["message"]
    assert error["extraInfo"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("body", "error", "where"),
    [
        ("def main():\n    elastic.run(3, elastic.State())\nmain()", "UsageError", "6 in main"),
        ("elastic.State(3)", "UsageError", "5 in <module>"),
        (
            "elastic.Checkpointer('runs', {'model': 3}, every='soon')",
            "CheckpointUsageError",
            "5 in <module>",
        ),
        (
            "ckpt = elastic.Checkpointer('run', {'a': 3})\nckpt.save()\nckpt.save()\nckpt.save()",
            "UsageError",
            "7 in <module>",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place_in_the_script(
    tmp_path: Path, body: str, error: str, where: str
) -> None:
    code, found = _as_worker(tmp_path, body)
    assert code == 1
    assert found["message"].startswith(f"{error}: ")
    assert found["message"].endswith(f" (at script.py:{where})")


def test_a_decorated_function_that_was_not_needed_is_no_error(tmp_path: Path) -> None:
    assert _as_worker(tmp_path, "@elastic.run\ndef other(world): pass\n") == (0, {})
