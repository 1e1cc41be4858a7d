"""Whole scripts with one mistake, run as a worker runs them, and how a process ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import elastic_runtime as elastic
from elastic_runtime.worker import worker_main
from tests import zygote
from tests.unit.programs import python

_TOP = """
import sys, torch
import elastic_runtime as elastic
def train(world): pass
"""
_AT_LATE = """\
state = elastic.State(a=3)
state.checkpoints("runs")
with state.resumed():
    state.commit()
    state.at("end", print)
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
    code = zygote.run(command, env=environ, cwd=folder, timeout=100).returncode
    return code, json.loads(errors.read_text())["message"] if errors.exists() else {}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("elastic.run(train, None)", "elastic.run needs the State that must not be lost"),
        ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))", _EARLY),
    ],
)
def test_who_cannot_train_ends_with_a_usage_error(tmp_path: Path, body: str, told: str) -> None:
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
            "elastic.State().checkpoints('runs', every='soon')",
            "CheckpointUsageError",
            "5 in <module>",
        ),
        (_AT_LATE, "UsageError", "9 in <module>"),
    ],
)
def test_a_mistake_is_told_with_its_place_in_the_script(
    tmp_path: Path, body: str, error: str, where: str
) -> None:
    code, found = _as_worker(tmp_path, body)
    assert code == 1
    assert found["message"].startswith(f"{error}: ")
    assert found["message"].endswith(f" (at script.py:{where})")


# A quick end is an end all the same


_SCRIPT = """
import atexit, sys, threading
from elastic_runtime.worker.fast_exit import exit_fast
left_open = open(sys.argv[1], "w")
left_open.write("file\\n")
atexit.register(print, "early")
over = threading.Event()
thread = threading.Thread(target=lambda: over.wait() and print("thread"))
try:
    exit_fast(79)
    {late}
    thread.start()
    raise SystemExit(79)
finally:
    print("finally")
    over.set()
"""


@pytest.mark.parametrize(("late", "said"), [("", []), ("atexit.register(print, 'late')", ["late"])])
def test_all_but_the_interpreter_ends_in_order(tmp_path: Path, late: str, said: list[str]) -> None:
    done = python("-c", _SCRIPT.format(late=late), tmp_path / "file")
    assert (done.returncode, done.stderr) == (79, "")
    assert done.stdout.split() == ["finally", "thread", *said, "early"]
    assert (tmp_path / "file").read_text() == "file\n"


_WITH_GARBAGE = """
import sys
from elastic_runtime.worker.fast_exit import exit_fast
class Slow:
    def __del__(self):
        print("taken apart")
sys.keeper = Slow()
exit_fast(3)
sys.exit(3)
"""


def test_the_interpreter_is_not_taken_apart() -> None:
    done = python("-c", _WITH_GARBAGE)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize(("has_agent", "code"), [(True, 79), (False, 143)])
def test_a_requested_end_has_the_code_that_the_sender_expects(has_agent: bool, code: int) -> None:
    script = (
        "from elastic_runtime.worker.fast_exit import end_on_request\n"
        f"end_on_request(79, has_agent={has_agent})"
    )
    assert python("-c", script).returncode == code


def test_an_end_by_a_signal_is_quick_too() -> None:
    script = _WITH_GARBAGE.replace("exit_fast(3)", "exit_fast(-signal.SIGINT)")
    script = f"import signal\n{script}".replace("sys.exit(3)", "raise KeyboardInterrupt")
    done = python("-c", script)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")
    assert done.stderr.endswith("KeyboardInterrupt\n")
