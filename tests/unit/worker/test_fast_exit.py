"""A quick end is an end all the same."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.unit.programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

import pytest

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
def test_everything_but_the_interpreter_is_ended_in_order(
    tmp_path: Path, late: str, said: list[str]
) -> None:
    done = run_python(_SCRIPT.format(late=late), tmp_path / "file")
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
    done = run_python(_WITH_GARBAGE)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize(("has_agent", "code"), [(True, 79), (False, 143)])
def test_a_requested_end_has_the_exit_code_that_the_sender_expects(
    has_agent: bool, code: int
) -> None:
    script = (
        "from elastic_runtime.worker.fast_exit import end_on_request\n"
        f"end_on_request(79, has_agent={has_agent})"
    )
    assert run_python(script).returncode == code


def test_an_end_by_a_signal_is_quick_too() -> None:
    script = _WITH_GARBAGE.replace("exit_fast(3)", "exit_fast(-signal.SIGINT)")
    script = f"import signal\n{script}".replace("sys.exit(3)", "raise KeyboardInterrupt")
    done = run_python(script)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")
    assert done.stderr.endswith("KeyboardInterrupt\n")
