"""What a node leaves behind, lines of text as events, and words for numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_runtime.reporting.json_lines import WORKER_LINE, LineEvents
from elastic_runtime.reporting.last_words import last_words, read_last_words
from elastic_runtime.reporting.wording import Shown, again, count, cut, duration

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
