"""The console, a stream that never blocks, with real pipes; what is said on it, and at the end."""

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
from typing import Any

import pytest

from elastic_runtime.events.round_events import RoundLeft
from elastic_runtime.reporting.console import Console, show_only_events, unblocked
from elastic_runtime.reporting.json_lines import WORKER_LINE, LineEvents
from elastic_runtime.reporting.last_words import last_words, read_last_words
from elastic_runtime.reporting.log import make_emit
from elastic_runtime.reporting.wording import Shown, again, count, cut, duration

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


# ---------------------------------------------------------------- last words

# What the kubelet reads of a termination message, in bytes.
MOST = 4096
# As an agent says it, with the longest names that a job and its pods can have.
REPORT = {
    "run_id": "r" * 128,
    "node": "n" * 253,
    "round": 2**31,
    "world": 10_000,
    "nodes": 10_000,
    "step": 2**53,
    "checkpoint_step": 2**53,
    "ready": False,
    "restarts": {"failed": 1000, "killed": 1000, "lost": 1000, "planned": 1000},
}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("worker 3 has failed", "worker 3 has failed"),
        ("  worker 3 has failed\n", "worker 3 has failed"),
        ("worker 3 has failed:\n  no space left\n\non /data", None),
        ("Knoten vier ist müde 😴", "Knoten vier ist müde 😴"),
        ("", ""),
    ],
)
def test_what_is_written_is_read_again(message: str, words: str | None) -> None:
    said, report = read_last_words(last_words(message, REPORT).decode())
    assert said == (words if words is not None else "worker 3 has failed: no space left on /data")
    assert json.loads(report) == REPORT


@pytest.mark.parametrize("said", ["no etcd at etcd:2379", " \n no etcd at etcd:2379\n\n"])
def test_without_an_agent_there_are_only_words(said: str) -> None:
    assert last_words(said) == b"no etcd at etcd:2379\n"
    assert read_last_words("no etcd at etcd:2379\n") == ("no etcd at etcd:2379", "")


def test_people_read_the_words_first_and_the_report_is_one_line() -> None:
    *said, report, end = last_words("two\nlines", REPORT).decode().split("\n")
    assert said == ["two", "lines"]
    assert json.loads(report) == REPORT
    assert end == ""


@pytest.mark.parametrize("letter", ["a", "é", "日", "😴", ".\n"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_message_is_cut_so_that_all_of_it_is_read(letter: str, shift: int) -> None:
    # The shift puts each byte of a letter at the place where it is cut.
    message = "x" * shift + letter * MOST
    written = last_words(message, REPORT)
    assert len(written) <= MOST
    said, report = written.decode().rstrip("\n").rsplit("\n", 1)
    assert json.loads(report) == REPORT
    assert message.startswith(said)
    assert len(said.encode()) > MOST // 2


def test_a_message_that_fits_is_not_cut() -> None:
    message = "é" * 1000
    assert read_last_words(last_words(message, REPORT).decode())[0] == message


# ---------------------------------------------------------------- of other programs


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("loading\nstep 1\nstep 2\n", "step 2"),
        ("loading\nValueError: no data\nshutting down\n", "ValueError: no data"),
        ("RuntimeError: first\nerror: second\nbye", "error: second"),
        ("Traceback (most recent call last):\n  x()\nKeyError: 'a'\n\n", "KeyError: 'a'"),
        ("  Segmentation fault  ", "Segmentation fault"),
        ("a\r\nError: b\r\nc\r\n", "Error: b"),
        ('{"level": "info"}\nErrors: 3\ndone', "Errors: 3"),
    ],
)
def test_of_a_log_the_last_line_with_an_error_tells_most(log: str, words: str) -> None:
    assert read_last_words(log) == (words, "")


@pytest.mark.parametrize(
    ("text", "report"),
    [
        *(("", ""), ("\n", ""), (" \n\t\n", "")),
        *(('{"run_id": "a"}', '{"run_id": "a"}'), ('\n  {"run_id": "a"}\n\n', '{"run_id": "a"}')),
    ],
)
def test_who_has_said_nothing_has_no_words(text: str, report: str) -> None:
    assert read_last_words(text) == ("", report)


def test_a_line_of_json_of_another_program_is_no_report() -> None:
    log = 'Traceback\nValueError: x\n{"level": "error", "msg": "boom"}'
    assert read_last_words(log) == ('{"level": "error", "msg": "boom"}', "")


def test_bytes_that_are_no_text_are_no_trouble() -> None:
    assert last_words("no \udcff", {"run_id": "\udcff"}) == b'no ?\n{"run_id": "?"}\n'


@pytest.mark.parametrize("name", ["x" * 5000, "é" * 1000, "x" * 2000])
def test_it_never_grows_beyond_what_the_kubelet_reads(name: str) -> None:
    assert len(last_words("é" * 4000, {"run_id": name})) <= 4096
    assert read_last_words(last_words("é" * 4000, {"run_id": name}).decode())[0].startswith("éé")


# ---------------------------------------------------------------- lines of text as events


def events(text: bytes) -> list[dict[str, Any]]:
    made = LineEvents(WORKER_LINE, {"rank": 3}).with_(round=7)(text)
    return [json.loads(line) for line in made.splitlines()]


def test_each_line_is_an_event_and_says_whose_it_is() -> None:
    first, second = events(b"loss 0.1\n\n")
    assert (first["event"], first["rank"], first["round"]) == (WORKER_LINE, 3, 7)
    assert (first["line"], second["line"]) == ("loss 0.1", "")
    assert "partial" not in first


def test_a_line_that_is_not_finished_says_so() -> None:
    whole, rest = events(b"one\ntw")
    assert (whole["line"], rest["line"], rest["partial"]) == ("one", "tw", True)


def test_no_byte_of_a_line_is_lost_or_breaks_the_event() -> None:
    (event,) = events(b'a "quote", \xff and \xc3\xa9\r\n')
    assert event["line"] == 'a "quote", \\xff and é\r'


# ---------------------------------------------------------------- numbers and durations in words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (0.314, "0.31 s"),
        (0.996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_a_duration_never_shows_sixty_of_anything(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (["a"], "1 node"), ((), "0 nodes")],
)
def test_things_are_counted(number: object, text: str) -> None:
    assert count(number, "node") == text


def test_steps_that_are_made_again_are_named_only_if_there_are_any() -> None:
    assert again(5, 8) == " (3 steps again)"
    assert again(5, 6) == " (1 step again)"
    assert again(5, 5) == again(5, 2) == again(5, None) == ""


def test_fields_are_one_line_each_and_a_missing_one_is_a_question_mark() -> None:
    shown = Shown({"seconds": 75, "ranks": [1, 2], "reason": " first\nsecond", "round": 3})
    sentence = "round {round}, ranks {ranks}, {seconds}: {reason} ({nobody})"
    assert sentence.format_map(shown) == "round 3, ranks 1, 2, 1 min 15 s: first (?)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b", "a b"),
        ("a\n  b\tc", "a b c"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 8 + " …"),
        ("one two three", "one two …"),
        ("", ""),
    ],
)
def test_a_text_is_cut_where_it_is_too_long(text: str, said: str) -> None:
    assert cut(text, 10) == said
