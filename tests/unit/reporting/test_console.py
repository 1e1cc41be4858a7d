"""A stream that never blocks, with real pipes; the console's other side is in ``agent``."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic_runtime.events.round_events import RoundLeft
from elastic_runtime.reporting.console import Console, show_only_events, unblocked
from elastic_runtime.reporting.log import make_emit

_LINES = [f"line {number} äß\n" for number in range(5000)]


def test_all_lines_are_there_in_order_when_the_block_ends(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w", encoding="utf-8") as file, unblocked(file) as stream:
        for line in _LINES:
            stream.write(line)
    assert (tmp_path / "shown").read_text(encoding="utf-8") == "".join(_LINES)


def test_whatever_is_written_is_an_event_where_events_are_read(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w", encoding="utf-8") as file, unblocked(file) as stream:
        stream.write("before\n")
        show_only_events(stream)
        make_emit("json", stream)(RoundLeft(1, "x"))
        print("a warning", file=stream)
        stream.write("last words\nwithout an end")
    text, *events = (tmp_path / "shown").read_text(encoding="utf-8").splitlines()
    assert text == "before"
    assert [(e["event"], e.get("line")) for e in map(json.loads, events)] == [
        ("round.left", None),
        ("agent.line", "a warning"),
        ("agent.line", "last words"),
        ("agent.line", "without an end"),
    ]


def test_consoles_of_one_place_tear_no_lines() -> None:
    reading, writing = os.pipe()
    lines = [[(str(one) * 300 + "\n").encode() for _ in range(300)] for one in range(2)]
    consoles = [Console(writing) for _ in lines]
    for console, mine in zip(consoles, lines, strict=True):
        console.write(console, b"", b"".join(mine))
    with os.fdopen(reading, "rb") as reader:
        received = [reader.readline() for _ in range(600)]
    for console in consoles:
        console.close()
    os.close(writing)
    assert sorted(received) == sorted(line for mine in lines for line in mine)


def test_a_reader_that_is_slow_gets_everything() -> None:
    reading, writing = os.pipe()
    received: list[bytes] = []

    def read() -> None:
        while data := os.read(reading, 1 << 10):
            received.append(data)

    reader = threading.Thread(target=read)
    with os.fdopen(writing, "w", encoding="utf-8") as file, unblocked(file) as stream:
        stream.write("".join(_LINES))
        reader.start()
    reader.join(30)
    os.close(reading)
    assert b"".join(received).decode() == "".join(_LINES)


def test_a_stuck_reader_blocks_nobody_and_not_the_end_of_the_block() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file, unblocked(file) as stream:
        for _ in range(100):
            stream.write("x" * 10_000 + "\n")
            stream.flush()
    shown = os.read(reading, 1 << 21)
    os.close(reading)
    assert shown.startswith(b"x" * 10_000), "what there was room for is shown"
    assert len(shown) < 1_000_000, "and the rest is dropped"


def test_a_reader_that_has_gone_and_a_full_disk_raise_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for file in (os.fdopen(writing, "w"), Path("/dev/full").open("w")):
        with file, unblocked(file) as stream:
            with pytest.raises(OSError, match=r"Broken pipe|No space"):
                os.write(file.fileno(), b"x")
            print("nobody reads this", file=stream, flush=True)


def test_it_is_the_same_stream_to_who_looks_closer(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w", encoding="utf-8") as file, unblocked(file) as stream:
        assert stream.fileno() == file.fileno()
        assert not stream.isatty()
        assert stream.encoding == "utf-8"
        stream.write("\ud800\n")  # what no encoding has is no error of who says it
        with unblocked(stream) as again:
            assert again is stream
    assert (tmp_path / "shown").read_text(encoding="utf-8") == "\\ud800\n"


def test_a_stream_without_a_descriptor_is_handed_back() -> None:
    caught = io.StringIO()
    with unblocked(caught) as stream:
        assert stream is caught


def test_a_full_disk_is_written_to_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = os.write, threading.Event()

    def limited(descriptor: int, data: bytes) -> int:
        if full.is_set():
            raise OSError(errno.ENOSPC, "no room")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    descriptor = os.open(tmp_path / "shown", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    console = Console(descriptor)
    os.close(descriptor)
    for said, room in ((b"one\n", True), (b"two\n", False), (b"three\n", True)):
        (full.clear if room else full.set)()
        console.write(None, b"", said)
        assert console.flush(10.0)
    console.close()
    assert (tmp_path / "shown").read_bytes() == (
        b"one\nthree\n\n[elastic-run] the console was stuck or full: 4 bytes were not shown\n"
    )


def test_no_signal_is_delivered_to_its_thread(tmp_path: Path) -> None:
    """The parent of local nodes has its signals blocked, and waits for them; a thread that had not
    would be ended by them, and the whole process with it."""
    before = set(threading.enumerate())
    with (tmp_path / "shown").open("w") as file, unblocked(file):
        (thread,) = set(threading.enumerate()) - before
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked & 1 << (signal.SIGTERM - 1)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


_FILL_IN = """
import os, socket, sys
from elastic_runtime.reporting.console import open_missing

open_missing()
with socket.socket() as first:
    assert first.fileno() > 2, first
print("nobody reads this", flush=True)
print("nor this", file=sys.stderr, flush=True)
assert sys.stdin.read() == ""
assert all(os.get_inheritable(number) for number in range(3))
with open(sys.argv[1], "w") as told:
    told.writelines(f"{os.readlink(f'/proc/self/fd/{number}')}\\n" for number in range(3))
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_is_missing_is_opened_before_anything_else(tmp_path: Path, closed: str) -> None:
    program = [sys.executable, "-c", _FILL_IN, str(tmp_path / "told")]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *program], stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0
    told = (tmp_path / "told").read_text().splitlines()
    for number, sign in enumerate(("<&-", " >&-", "2>&-")):
        assert told[number] == os.devnull or sign not in f" {closed}"
