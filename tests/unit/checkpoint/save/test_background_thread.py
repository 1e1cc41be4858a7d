"""What is done beside training, and what is left of it when it fails."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from elastic_runtime.checkpoint.save import background_thread
from elastic_runtime.checkpoint.save.background_thread import (
    BackgroundThread,
    Task,
    failing_for_all,
)
from tests.processes import wait_for
from tests.unit.programs import python

_PATIENCE = 60.0


class _Group:
    """Stands for what a round has, and what must end with it."""


def test_a_failure_holds_nothing_of_the_round_in_which_it_happened() -> None:
    seen: list[weakref.ref[_Group]] = []

    def meet(group: _Group) -> None:
        raise RuntimeError(f"a peer of {group} is gone")

    def save() -> None:
        group = _Group()
        seen.append(weakref.ref(group))
        meet(group)

    gc.disable()  # it comes late, if at all
    try:
        task = Task(BackgroundThread("test"), lambda _: failing_for_all(save)())
        assert task.wait(lambda: None, _PATIENCE)
        assert task.has_failed
        assert "a peer of" in str(task.error)
        assert seen[0]() is None
    finally:
        gc.enable()


def test_a_line_does_one_thing_after_the_other_and_its_thread_ends_with_it() -> None:
    thread, done, go = BackgroundThread("test-thread"), list[int](), threading.Event()
    first = Task(thread, lambda _: (go.wait(_PATIENCE), done.append(1))[1])
    second = Task(thread, lambda _: done.append(2))
    assert not second.wait(lambda: None, 0.05)
    go.set()
    assert first.wait(lambda: None, _PATIENCE) and second.wait(lambda: None, _PATIENCE)
    assert done == [1, 2]
    del thread, first, second
    gc.collect()
    wait_for(
        lambda: "test-thread" not in [thread.name for thread in threading.enumerate()],
        _PATIENCE,
        "the end of the thread",
    )


_PROGRAM = """
import os, sys, threading, time
from elastic_runtime.checkpoint.save import background_thread
from elastic_runtime.checkpoint.save.background_thread import BackgroundThread, Task

kind, forked = sys.argv[1:]
thread, begun, go = BackgroundThread("save"), threading.Event(), threading.Event()

def work(task):
    begun.set()
    if kind == "stuck":
        go.wait()
    time.sleep(1.0)  # longer than the program
    print("cleared" if task._abandoned.is_set() else "saved", flush=True)

if forked == "forked":
    of_parent = Task(thread, lambda _: go.wait())
    if pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        go.set()
        sys.exit(code)
    thread = BackgroundThread("save")
if kind == "stuck":
    background_thread.ABANDONED_TASKS_TIMEOUT = 0.1
task = Task(thread, work)
begun.wait()
if kind != "wanted":
    task.abandon()
if kind == "stuck":
    Task(thread, lambda _: None, wanted=False)
print("over", flush=True)
"""


@pytest.mark.parametrize("forked", ["alone", "forked"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [("wanted", ["over", "saved"]), ("given up", ["over", "cleared"]), ("stuck", ["over"])],
)
def test_a_program_waits_at_its_end_for_what_is_wanted_and_a_moment_for_the_rest(
    kind: str, said: list[str], forked: str
) -> None:
    # Python 3.12 warns of a fork of a process with threads.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    ended = python(*quiet, "-c", _PROGRAM, kind, forked)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == said


def test_it_goes_on_after_a_thread_that_could_not_start_and_work_that_was_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def leave(task: Task) -> None:
        sys.exit(3)

    thread = BackgroundThread("test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            Task(thread, lambda _: None)
    assert not background_thread._exit_guard._tasks
    cut_off, after = Task(thread, leave), Task(thread, lambda _: None)
    assert after.wait(lambda: None, _PATIENCE)
    assert cut_off.has_failed and "SystemExit(3)" in str(cut_off.error)
    assert not after.has_failed
