"""Lists of machines that change, and those that cannot be read."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.hosts import host_source
from elastic_runtime.cli.hosts.host_source import HostSource
from elastic_runtime.cli.hosts.listed_hosts import Host
from elastic_runtime.errors import UsageError
from tests.processes import state, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE = 60.0


def program(folder: Path, text: str) -> HostSource:
    """One that prints a list, or does not."""
    path = folder / "discover"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return HostSource(str(path), is_program=True)


def test_a_file_and_a_program_are_read(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n0\nn1:2\n")
    listed = (Host("n0"), Host("n1", 2))
    assert HostSource(str(tmp_path / "hosts"), is_program=False).look() == listed
    assert program(tmp_path, f"cat {tmp_path}/hosts").look() == listed


def _none(folder: Path) -> HostSource:
    return HostSource(str(folder / "hosts"), is_program=False)


def _no_program(folder: Path) -> HostSource:
    return HostSource(str(folder / "hosts"), is_program=True)


def _failing(folder: Path) -> HostSource:
    return program(folder, "echo cloud is away >&2; exit 3")


def _hanging(folder: Path) -> HostSource:
    return program(folder, "exec sleep 1000")


def _fifo(folder: Path) -> HostSource:
    os.mkfifo(folder / "hosts")
    return _none(folder)


def _endless_file(folder: Path) -> HostSource:
    return HostSource("/dev/zero", is_program=False)


def _large_file(folder: Path) -> HostSource:
    (folder / "hosts").write_bytes(b"n0\n" * 2_000_000)
    return _none(folder)


def _endless(folder: Path) -> HostSource:
    return program(folder, "exec yes")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (_none, "there is no '.*hosts' here: --hosts takes a file"),
        (_no_program, "hosts cannot be run: No such file or directory"),
        (_failing, "discover has ended with 3: cloud is away"),
        (_fifo, "hosts is no file"),
        (_endless_file, "zero is no file"),
        (_large_file, "hosts gives more than any list of hosts has"),
        (_endless, "discover gives more than any list of hosts has"),
        (_hanging, "discover has not ended after 0.1 s"),
    ],
)
def test_what_cannot_be_read_is_said(
    source: Callable[[Path], HostSource],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_source, "_LONGEST_LOOK", 0.1 if source is _hanging else PATIENCE)
    with pytest.raises(UsageError, match=said):
        source(tmp_path).look()


def test_an_editors_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfn0\n")
    assert _none(tmp_path).look() == (Host("n0"),)


@pytest.mark.parametrize("how", ["too long", "closed"])
def test_of_a_program_that_hangs_nothing_is_left(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_source, "_LONGEST_LOOK", 0.5 if how == "too long" else PATIENCE)
    noted = tmp_path / "pid"
    source = program(tmp_path, f"sleep 1000 & echo $! >{noted}.new; mv {noted}.new {noted}; wait")

    def look() -> None:
        with pytest.raises(UsageError):
            source.look()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    wait_for(noted.exists, PATIENCE, "the program")
    if how == "closed":
        source.close()
    looking.join(PATIENCE)
    assert not looking.is_alive()
    pid = int(noted.read_text())
    wait_for(lambda: state(pid) in ("", "Z"), PATIENCE, "the end of what it has started")


def test_a_signal_that_comes_while_the_program_starts_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is an error in the main thread, at any line of it."""
    started: list[int] = []

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            program(tmp_path, "sleep 1000").look()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_for(lambda: state(started[0]) in ("", "Z"), PATIENCE, "the end of the program")


def test_a_list_counts_when_it_has_been_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_source, "INTERVAL", 0.0)
    looks = iter(["n0", "n0", "n0\nn1", "n0\nn1\nn2", "n0\nn1\nn2", "n0 n1", "n0 n1", "n0", "n0"])
    known = (Host("n0"),)

    def look(source: HostSource) -> tuple[Host, ...]:
        return host_source.read_hosts(next(looks, "n0"), source.path)

    monkeypatch.setattr(HostSource, "look", look)
    said: queue.SimpleQueue[object] = queue.SimpleQueue()
    source = HostSource("hosts", is_program=False)
    source.follow(known, said.put, said.put)
    heard = [said.get(timeout=PATIENCE) for _ in range(3)]
    source.close()
    assert heard[0] == (Host("n0"), Host("n1"), Host("n2"))  # never without the last one
    assert "line 1: 'n0 n1' is no host" in str(heard[1])  # once, though it was so twice
    assert heard[2] == known
