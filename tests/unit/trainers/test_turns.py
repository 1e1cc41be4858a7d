"""One process after the other, of a node or of all that see a directory."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.trainers.turns import turn

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("everywhere", [False, True])
def test_one_at_a_time(tmp_path: Path, everywhere: bool) -> None:
    directory = str(tmp_path / "runs" / "job")
    inside, most, done = 0, 0, []
    pause = threading.Event()

    def work() -> None:
        nonlocal inside, most
        with turn(directory, everywhere=everywhere):
            inside += 1
            most = max(most, inside)
            pause.wait(0.05)
            inside -= 1
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, len(done)) == (1, 3)
    assert (tmp_path / "runs" / "job.prepare-lock").exists() is everywhere


def test_jobs_do_not_wait_for_each_other(tmp_path: Path) -> None:
    inside = []
    with turn(str(tmp_path / "a")), turn(str(tmp_path / "b")):
        inside.append("both")
    assert inside == ["both"]


def test_a_child_that_lives_on_holds_nobody_up(tmp_path: Path) -> None:
    with turn(str(tmp_path)):
        child = os.fork()
        if child == 0:
            signal.pause()
    again = []
    try:
        with turn(str(tmp_path)):
            again.append(os.waitpid(child, os.WNOHANG))
        assert again == [(0, 0)], "the child has ended too early to hold anything"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
