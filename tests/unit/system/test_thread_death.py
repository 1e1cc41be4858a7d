"""Noticing the death of another process when it begins."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.system import thread_death
from tests.processes import state, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 30.0

# Holds the file, says so, and does what its first line of input says.
HOLDER = """
import mmap, os, sys, threading, time
from elastic_runtime.system import thread_death
print(thread_death.hold(sys.argv[1]), flush=True)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
exec(sys.stdin.readline())
"""


class Holder:
    """A process that holds a file, and a thread that awaits its death."""

    def __init__(self, path: Path) -> None:
        self.found: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.holds = self.hears() == "True"
        self._path = str(path)
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        self.found.put(thread_death.await_death(self._path, self.process.pid))

    def hears(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def does(self, line: str) -> None:
        """Has it do this, with somebody waiting for its death if it holds the file."""
        if self.holds:
            self.thread.start()
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    thread_death.make(str(tmp_path / "death"))
    found = Holder(tmp_path / "death")
    yield found
    found.end()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("time.sleep(1000)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
        ("raise ValueError", 1),
        ("os._exit(0)", None),  # that is no fault, and can wait
        ("os.execvp('sleep', ['sleep', '1000'])", None),  # that is no death
    ],
)
def test_the_exit_code_is_known(holder: Holder, line: str, code: int | None) -> None:
    assert holder.holds
    holder.does(line)
    if code == -signal.SIGKILL:
        holder.process.kill()
    assert holder.found.get(timeout=PATIENCE) == code
    if code is not None:
        assert holder.process.wait(PATIENCE) == code


def test_a_death_is_known_before_the_process_is_gone(holder: Holder) -> None:
    """It cannot be gone before it has given back its memory."""
    holder.does(
        "m = mmap.mmap(-1, 1 << 30); [m.write(bytes(1 << 20)) for _ in range(1 << 10)];"
        " print('full', flush=True); time.sleep(1000)"
    )
    assert holder.hears() == "full"
    holder.process.kill()
    assert holder.found.get(timeout=PATIENCE) == -signal.SIGKILL
    assert holder.process.poll() is None
    assert holder.process.wait(PATIENCE) == -signal.SIGKILL


def test_a_child_of_the_holder_neither_holds_nor_gives_it_up(holder: Holder) -> None:
    holder.does(
        "child = os.fork() or os._exit(5); print(os.waitpid(child, 0)[1], flush=True);"
        " time.sleep(1000)"
    )
    assert holder.hears() == str(5 << 8)
    assert holder.found.empty()
    assert holder.thread.is_alive()
    holder.process.kill()
    assert holder.found.get(timeout=PATIENCE) == -signal.SIGKILL


def test_one_process_holds_a_file(holder: Holder, tmp_path: Path) -> None:
    second = Holder(tmp_path / "death")
    assert not second.holds
    second.end()
    assert not thread_death.hold(str(tmp_path / "death"))


def test_what_is_no_such_file_is_not_held(tmp_path: Path) -> None:
    short, other = tmp_path / "short", tmp_path / "other"
    short.write_bytes(b"x")
    other.write_bytes(b"another C library".ljust(128, b"\0"))
    for path in (tmp_path / "missing", short, other, tmp_path):
        assert not thread_death.hold(str(path))
    assert thread_death.await_death(str(tmp_path / "missing"), os.getpid()) is None
    with pytest.raises(FileExistsError):
        thread_death.make(str(short))


def test_no_trace_of_the_process_is_no_death(tmp_path: Path) -> None:
    """Its parent may have collected it before the news was read."""
    thread_death.make(str(tmp_path / "death"))
    gone = Holder(tmp_path / "death")
    gone.end()
    wait_for(lambda: not state(gone.process.pid), PATIENCE, "the end of the process")
    assert thread_death.await_death(str(tmp_path / "death"), gone.process.pid) is None


def test_a_file_whose_holder_died_unseen_is_not_held_again(tmp_path: Path) -> None:
    """A script that starts two others, one after the other, in one environment."""
    thread_death.make(str(tmp_path / "death"))
    first = Holder(tmp_path / "death")
    assert first.holds
    first.end()
    second = Holder(tmp_path / "death")
    assert not second.holds
    second.does("import ctypes; m = mmap.mmap(-1, 1 << 16); sys.exit(0)")
    assert second.process.wait(PATIENCE) == 0
    second.end()


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", refuse)
        thread_death.make(str(tmp_path / "death"))
    assert not list(tmp_path.iterdir())
