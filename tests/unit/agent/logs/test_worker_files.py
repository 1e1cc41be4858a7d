"""Log files on disks that are full, slow or stuck."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.logs import worker_files
from elastic_runtime.agent.logs.worker_files import LogWriter
from elastic_runtime.events.log_events import LogDropped, LogResumed

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.events import Event

PATIENCE = 60.0


class Disk:
    """The writes of all log files: they fail, or do not return, as long as the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.free = threading.Event()
        self.free.set()
        self._write = os.write
        monkeypatch.setattr(worker_files.os, "write", self.write)

    def write(self, descriptor: int, data: Any) -> int:
        assert self.free.wait(PATIENCE)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(worker_files, "_AGAIN", 0.0)
    return Disk(monkeypatch)


def test_a_full_disk_is_said_once_and_the_file_goes_on_when_there_is_room(
    disk: Disk, tmp_path: Path
) -> None:
    told: list[Event] = []
    writer = LogWriter(told.append)
    one, two = (writer.open(partial(str, tmp_path / name)) for name in ("one", "two"))
    one.write(b"first\n")
    assert writer.flush(PATIENCE)
    disk.full = True
    for _ in range(3):
        one.write(b"lost\n")
        two.write(b"lost as well\n")
    assert writer.flush(PATIENCE)
    assert [type(event) for event in told] == [LogDropped]
    disk.full = False
    one.write(b"last\n")
    two.write(b"last\n")
    two.close()
    assert writer.flush(PATIENCE)
    writer.close()
    assert (tmp_path / "one").read_bytes() == (
        b"first\n\n[elastic-run] 15 bytes could not be written here\nlast\n"
    )
    assert told[1] == LogResumed(two.path, 54)


def test_a_disk_that_is_full_from_the_start_is_no_reason_not_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_files, "_AGAIN", 0.0)
    really = os.open

    def full(*_: Any) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(worker_files.os, "open", full)
    writer = LogWriter()
    file = writer.open(partial(str, tmp_path / "log"))
    file.write(b"lost")
    assert writer.flush(PATIENCE)
    monkeypatch.setattr(worker_files.os, "open", really)
    file.write(b"kept")
    file.close()
    assert writer.flush(PATIENCE)
    assert (tmp_path / "log").read_bytes().endswith(b"kept")


def test_what_fails_for_any_reason_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_files, "_AGAIN", 0.0)
    told: list[Event] = []
    writer = LogWriter(told.append)
    path = tmp_path / "directory" / "log"
    made = threading.Event()

    def make() -> None:
        if not made.is_set():
            raise OSError(errno.ESTALE, "Stale file handle", str(path.parent))
        path.parent.mkdir()

    writer.call(make)
    quiet = writer.open(partial(str, path.with_name("quiet")))
    file = writer.open(partial(str, path))
    file.write(b"lost")
    assert writer.flush(PATIENCE)
    assert told == [LogDropped(str(path.parent), "Stale file handle")]
    made.set()
    writer.call(make)
    file.write(b"kept")
    file.close()
    assert writer.flush(PATIENCE)
    assert path.read_bytes() == b"\n[elastic-run] 4 bytes could not be written here\nkept"
    assert told[1:] == [LogResumed(str(path), 4)]
    quiet.close()
    writer.close()


def test_a_stuck_disk_holds_up_for_a_while_and_then_costs_only_the_log(
    disk: Disk, tmp_path: Path
) -> None:
    relieved = threading.Event()
    writer = LogWriter(relieved=relieved.set, limit=10, patience=3600.0)
    file = writer.open(partial(str, tmp_path / "log"))
    disk.free.clear()
    file.write(b"a" * 11)
    assert file.full
    disk.free.set()
    assert relieved.wait(PATIENCE)
    assert not file.full
    disk.free.clear()
    file.write(b"b" * 11)
    writer._patience = 0.0
    assert not file.full
    file.write(b"lost")
    disk.free.set()
    file.close()
    assert writer.flush(PATIENCE)
    assert b"lost" not in (tmp_path / "log").read_bytes()


def test_all_that_was_asked_for_is_done_and_told_before_a_flush_returns(tmp_path: Path) -> None:
    told: list[Event] = []
    writer = LogWriter(told.append)
    file = writer.open(partial(str, tmp_path / "log"))
    file.close()
    free = threading.Event()

    def publish() -> None:
        assert free.wait(PATIENCE)
        raise OSError(errno.ENOTDIR, "Not a directory", "logs")

    writer.call(publish)
    assert not writer.flush(0.0)
    free.set()
    assert writer.flush(PATIENCE)
    assert told == [LogDropped("logs", "Not a directory")]
    writer.close()
