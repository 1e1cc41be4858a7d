"""The way of a worker's output, with real pipes."""

from __future__ import annotations

import json
import os
import selectors
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.logs.worker_files import LogWriter
from elastic_runtime.agent.logs.worker_output import Filter, Pump, Route, Stream, route
from elastic_runtime.config import Output
from elastic_runtime.events.log_events import LogDropped
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
        try:
            os.close(descriptor)
        except OSError:
            pass  # closed by the test


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


def test_bytes_that_are_no_text_pass(screen: Screen, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = Stream(reading, b"", screen.console)
    os.write(writing, bytes(range(256)) + b"\n")
    stream.read()
    assert screen.shows() == bytes(range(256)) + b"\n"
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
    stream = Stream(reading, b"[a0]:", screen.console)
    text = b"x" * 1_000_000

    def write() -> None:
        os.write(writing, text)
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    os.set_blocking(reading, True)
    most = 0
    while stream.open:
        stream.read()
        most = max(most, len(stream._partial))
    writer.join()
    os.set_blocking(reading, False)
    stream.finish()
    assert screen.shows() == b"[a0]:" + text + b"\n"
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
        pump.finish([stream])
    assert screen.shows() == b"p Password: \n"


def test_the_rest_is_taken_at_the_end_though_the_pipe_stays_open(
    screen: Screen, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    stream = Stream(reading, b"", screen.console)
    os.write(writing, b"a" * 65_536)
    stream.finish()  # returns, though ``writing`` is open
    assert screen.shows() == b"a" * 65_536 + b"\n"


def test_lines_of_two_workers_do_not_mix(screen: Screen) -> None:
    with selectors.DefaultSelector() as selector:
        pump = Pump(selector)
        streams, writers = [], []
        for name in (b"a", b"b"):
            reading, writing = os.pipe()
            streams.append(Stream(reading, name + b":", screen.console))

            def write(writing: int = writing, name: bytes = name) -> None:
                for _ in range(2000):
                    os.write(writing, name * 50)
                    os.write(writing, name * 50 + b"\n")
                os.close(writing)

            writers.append(threading.Thread(target=write))
        pump.add(streams)
        for writer in writers:
            writer.start()
        while any(stream.open for stream in streams):
            for key, _ in selector.select(1.0):
                pump.ready(key.data)
        for writer in writers:
            writer.join()
        pump.finish(streams)
    lines = screen.shows().splitlines()
    assert sorted(lines) == [b"a:" + b"a" * 100] * 2000 + [b"b:" + b"b" * 100] * 2000


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


def test_a_slow_console_holds_up_and_then_relieves() -> None:
    reading, writing = os.pipe()
    relieved = threading.Event()
    console = Console(writing, relieved.set, limit=200_000, patience=60.0)
    os.close(writing)
    console.write(None, b"", b"x" * 400_000 + b"\n")
    assert console.full
    received = 0
    while received < 400_001:
        received += len(os.read(reading, 1 << 16))
    assert relieved.wait(10.0)
    wait_for(lambda: not console.full, 10.0, "room")
    console.close()
    os.close(reading)


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


def test_closing_a_stuck_console_returns() -> None:
    reading, writing = os.pipe()
    console = Console(writing, patience=0.05)
    os.close(writing)
    console.write(None, b"", b"x" * 400_000)
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
        (Output(redirects={-1: 3}), Route(False, True), Route(False, True)),
        (Output(redirects={-1: 1}), Route(False, True), Route(True, False)),
        (Output(redirects={0: 2}), Route(True, False), Route(False, True)),
        (Output(redirects={1: 3}), Route(True, False), Route(True, False)),
        (Output(tee={-1: 3}), Route(True, True), Route(True, True)),
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
        output = Output(
            redirects={-1: redirects},
            tee={-1: tee},
            ranks=frozenset(ranks) if ranks else None,
        )
        for rank in (0, 1):
            for stream, files, tees in (
                ("stdout", theirs.stdouts, theirs.tee_stdouts),
                ("stderr", theirs.stderrs, theirs.tee_stderrs),
            ):
                way = route(output, rank, stream)
                assert way.file == files[rank].endswith(".log")
                assert way.console == (files[rank] == "" or rank in tees)
