"""The way of a worker's output, with real pipes and on disks that are full, slow or stuck."""

from __future__ import annotations

import errno
import json
import os
import selectors
import threading
import time
from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.logs import outputs, worker_files
from elastic_runtime.agent.logs.log_directory import WorkerDir
from elastic_runtime.agent.logs.worker_files import LogWriter
from elastic_runtime.agent.logs.worker_output import Filter, Pump, Route, Stream, route
from elastic_runtime.config import Output
from elastic_runtime.events.log_events import LogDropped, LogResumed
from elastic_runtime.reporting.console import Console, open_consoles
from elastic_runtime.reporting.json_lines import WORKER_LINE, LineEvents
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from elastic_runtime.events import Event


class Screen:
    """A console that is a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.console = Console(descriptor)
        os.close(descriptor)

    def shows(self) -> bytes:
        assert self.console.flush(10.0)
        return self.path.read_bytes()


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path / "screen")
    yield screen
    screen.console.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with suppress(OSError):  # closed by the test
            os.close(descriptor)


def test_each_line_is_an_event_where_events_are_read(screen: Screen, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    who = LineEvents(WORKER_LINE, {"rank": 0, "stream": "stderr"})
    stream = Stream(reading, b"[a0]:", screen.console, events=who)
    os.write(writing, b'one\n\n"two"\xff\nthr')
    stream.read()
    stream.show_partial()
    stream.events = who.with_(rank=5)
    os.write(writing, b"ee\n")
    stream.read()
    events = [json.loads(line) for line in screen.shows().splitlines()]
    assert {event["event"] for event in events} == {"worker.line"}
    assert [(e["rank"], e["line"], e.get("partial", False)) for e in events] == [
        (0, "one", False),
        (0, "", False),
        (0, '"two"\\xff', False),
        (0, "thr", True),
        (5, "ee", False),
    ]


def test_each_line_gets_the_prefix(screen: Screen, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = Stream(reading, b"[a0]:", screen.console)
    os.write(writing, b"one\n\ntwo\nthr")
    assert stream.read() == 12
    assert screen.shows() == b"[a0]:one\n[a0]:\n[a0]:two\n"
    os.write(writing, b"ee\n")
    stream.read()
    assert screen.shows() == b"[a0]:one\n[a0]:\n[a0]:two\n[a0]:three\n"
    stream.finish()


def test_a_part_of_a_line_is_continued_by_its_owner_only(screen: Screen) -> None:
    one, other = object(), object()
    screen.console.write(one, b"1:", b"50 %")
    screen.console.write(one, b"1:", b" 60 %")
    screen.console.write(other, b"2:", b"done\n")
    screen.console.write(one, b"1:", b" 70 %\nnext\n")
    assert screen.shows() == b"1:50 % 60 %\n2:done\n1: 70 %\n1:next\n"


def test_a_line_without_end_is_shown_in_parts(screen: Screen, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream, most = Stream(reading, b"[a0]:", screen.console), 0
    for _ in range(100):
        os.write(writing, b"x" * 10_000)
        stream.read()
        most = max(most, len(stream._partial))
    stream.finish()
    assert screen.shows() == b"[a0]:" + b"x" * 1_000_000 + b"\n"
    assert most < 1 << 17  # nothing is hoarded


def test_an_unfinished_line_is_shown_after_a_while(screen: Screen, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with selectors.DefaultSelector() as selector:
        pump = Pump(selector)
        stream = Stream(reading, b"p ", screen.console)
        pump.add([stream])
        os.write(writing, b"Password: ")
        pump.ready(stream)
        wait = pump.timeout(time.monotonic())
        assert wait is not None and wait < 1.0
        assert screen.shows() == b""
        pump.tick(time.monotonic() + wait + 0.01)
        assert screen.shows() == b"p Password: "
        assert pump.timeout(time.monotonic()) is None
        os.close(writing)
        pump.ready(stream)
        assert not selector.get_map(), "it has ended"
        pump.finish([stream])
    assert screen.shows() == b"p Password: \n"


def test_the_rest_is_taken_at_the_end_though_the_pipe_stays_open(
    screen: Screen, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    stream = Stream(reading, b"", screen.console)
    text = bytes(range(256)) * 256  # what is no text passes, too
    os.write(writing, text)
    stream.finish()  # returns, though ``writing`` is open
    assert screen.shows() == text + b"\n"


def test_files_and_filters(screen: Screen, pipe: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = pipe
    logs = LogWriter()
    file, some = (logs.open(partial(str, tmp_path / name)) for name in ("all", "some"))
    stream = Stream(reading, b"[0]:", None, file, Filter((b"loss", b"lr"), some))
    os.write(writing, b"loss 1\nother\nlr 2")
    stream.read()
    stream.finish()
    assert logs.flush(10.0)
    logs.close()
    assert (tmp_path / "all").read_bytes() == b"loss 1\nother\nlr 2"
    assert (tmp_path / "some").read_bytes() == b"[0]:loss 1\n[0]:lr 2"


def test_a_full_disk_costs_the_file_only(screen: Screen, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    told: list[Event] = []
    logs = LogWriter(told.append)
    stream = Stream(reading, b"", screen.console, logs.open(lambda: "/dev/full"))
    os.write(writing, b"one\n")
    stream.read()
    os.write(writing, b"two\n")
    stream.read()
    assert screen.shows() == b"one\ntwo\n"
    stream.finish()
    logs.close()
    assert told[0] == LogDropped("/dev/full", "No space left on device")


def test_a_console_whose_reader_is_gone_is_forgotten() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    os.close(writing)
    os.close(reading)
    for _ in range(100):
        console.write(None, b"", b"x" * 100_000 + b"\n")
    assert console.flush(10.0)
    assert not console.full
    console.close()


def test_a_stuck_console_is_given_up_until_it_moves() -> None:
    reading, writing = os.pipe()
    console = Console(writing, limit=200_000, patience=0.05)
    os.close(writing)
    console.write(None, b"", b"x" * 400_000 + b"\n")
    wait_for(lambda: not console.full, 10.0, "the end of its patience")
    console.write(None, b"", b"lost\n")
    assert not console.flush(0.0)
    received = b""
    while not received.endswith(b"not shown\n"):
        received += os.read(reading, 1 << 16)
    assert received.endswith(
        b"x\n\n[elastic-run] the console was stuck or full: 5 bytes were not shown\n"
    )
    console.write(None, b"", b"seen\n")
    assert console.flush(10.0)
    assert os.read(reading, 100) == b"seen\n"
    console.close()
    os.close(reading)


def test_a_held_up_stream_is_not_read_until_there_is_room(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    screen, other = os.pipe()
    relieved = threading.Event()
    console = Console(other, relieved.set, limit=100_000, patience=60.0)
    os.close(other)
    with selectors.DefaultSelector() as selector:
        pump = Pump(selector)
        stream = Stream(reading, b"", console)
        pump.add([stream])
        console.write(None, b"", b"x" * 300_000 + b"\n")
        os.write(writing, b"waits\n")
        assert selector.select(1.0)
        pump.ready(stream)
        assert not selector.select(0)  # it is not looked at any more
        pump.tick(time.monotonic())
        assert not selector.select(0)
        received = b""
        while len(received) < 300_001:
            received += os.read(screen, 1 << 16)
        assert relieved.wait(10.0)
        pump.tick(time.monotonic())
        assert selector.select(1.0)
        pump.ready(stream)
        assert os.read(screen, 100) == b"waits\n"
        pump.finish([stream])
    console.close()
    os.close(screen)


def test_one_place_has_one_console(tmp_path: Path) -> None:
    one = os.open(tmp_path / "one", os.O_CREAT | os.O_WRONLY)
    again = os.open(tmp_path / "one", os.O_WRONLY)
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY)
    for stdout, stderr, shared in ((one, again, True), (one, other, False), (-1, one, False)):
        consoles = open_consoles(stdout, stderr)
        assert (consoles["stdout"] is consoles["stderr"]) == shared
        consoles["stdout"].write(None, b"", b"to nobody or somebody\n")
        for console in consoles.values():
            console.close()
    for descriptor in (one, again, other):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("output", "out", "err"),
    [
        (Output(), Route(True, False), Route(True, False)),
        (Output(redirects={0: 2}), Route(True, False), Route(False, True)),
        (Output(redirects={1: 3}), Route(True, False), Route(True, False)),
        (Output(tee={0: 1}, redirects={-1: 3}), Route(True, True), Route(False, True)),
        (Output(ranks=frozenset({1})), Route(False, False), Route(False, False)),
        (Output(ranks=frozenset({0})), Route(True, False), Route(True, False)),
        (Output(ranks=frozenset({1}), tee={-1: 3}), Route(False, True), Route(False, True)),
    ],
)
def test_where_a_stream_goes(output: Output, out: Route, err: Route) -> None:
    assert (route(output, 0, "stdout"), route(output, 0, "stderr")) == (out, err)


def test_agrees_with_torchrun(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    for number in range(4 * 4 * 3):
        redirects, tee, ranks = number % 4, number // 4 % 4, [None, {0}, {1}][number // 16]
        specs = DefaultLogsSpecs(str(tmp_path), Std(redirects), Std(tee), ranks)
        theirs = specs.reify({0: {}, 1: {}})
        some = frozenset(ranks) if ranks else None
        output = Output(redirects={-1: redirects}, tee={-1: tee}, ranks=some)
        for rank, stream in product((0, 1), ("stdout", "stderr")):
            file = getattr(theirs, f"{stream}s")[rank]
            way = route(output, rank, stream)
            assert way.file == file.endswith(".log")
            assert way.console == (file == "" or rank in getattr(theirs, f"tee_{stream}s"))


# Log files on disks that are full, slow or stuck


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


def test_a_full_disk_is_said_once_and_its_files_go_on_later(disk: Disk, tmp_path: Path) -> None:
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


def test_what_fails_from_the_start_is_said_once_and_tried_again(
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


# The end of a worker's output


class Directory(WorkerDir):
    """A worker's, in a log directory in which nothing can be done until it is free."""

    def __init__(self) -> None:
        super().__init__(1, 0, "", None)
        self.free = threading.Event()
        self.ended = threading.Event()

    @property
    def logged(self) -> bool:
        return True

    def end(self) -> None:
        assert self.free.wait(10 * PATIENCE)
        self.ended.set()


@pytest.fixture
def made() -> Iterator[outputs.Outputs]:
    told: list[Event] = []
    with selectors.DefaultSelector() as selector:
        made = outputs.Outputs(selector, 1, 2, lambda: None, told.append, only_events=False)
        yield made
        made.close()


def test_who_has_no_log_file_does_not_wait_for_the_log_disk(
    made: outputs.Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "WORKER_LOG_TIMEOUT", 10 * PATIENCE)
    directory = Directory()
    ending = threading.Thread(target=made.finish, args=([], directory))
    ending.start()
    ending.join(PATIENCE)
    waits = ending.is_alive()
    directory.free.set()
    ending.join()
    assert not waits
    assert made.logs.flush(PATIENCE)
    assert directory.ended.is_set()


def test_who_has_one_waits_until_all_of_it_is_done(made: outputs.Outputs, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    file = made.logs.open(partial(str, tmp_path / "log"))
    stream = Stream(reading, b"", None, file)
    os.write(writing, b"last words")
    os.close(writing)
    directory = Directory()
    directory.free.set()
    made.finish([stream], directory)
    assert (tmp_path / "log").read_bytes() == b"last words"
    assert directory.ended.is_set()
