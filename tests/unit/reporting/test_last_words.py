"""What a node leaves behind, and what is understood of what any program has left."""

from __future__ import annotations

import json

import pytest

from elastic_runtime.reporting.last_words import last_words, read_last_words

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


def test_without_an_agent_there_are_only_words() -> None:
    written = last_words("no etcd at etcd:2379")
    assert written == b"no etcd at etcd:2379\n"
    assert read_last_words(written.decode()) == ("no etcd at etcd:2379", "")


def test_space_around_the_words_is_not_written() -> None:
    assert last_words(" \n no etcd\n\n") == b"no etcd\n"


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


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n"])
def test_who_has_said_nothing(text: str) -> None:
    assert read_last_words(text) == ("", "")


@pytest.mark.parametrize("text", ['{"run_id": "a"}', '\n  {"run_id": "a"}\n\n'])
def test_a_report_alone_has_no_words(text: str) -> None:
    assert read_last_words(text) == ("", '{"run_id": "a"}')


def test_a_line_of_json_of_another_program_is_no_report() -> None:
    log = 'Traceback\nValueError: x\n{"level": "error", "msg": "boom"}'
    assert read_last_words(log) == ('{"level": "error", "msg": "boom"}', "")


def test_bytes_that_are_no_text_are_no_trouble() -> None:
    assert last_words("no \udcff", {"run_id": "\udcff"}) == b'no ?\n{"run_id": "?"}\n'


@pytest.mark.parametrize("name", ["x" * 5000, "é" * 1000, "x" * 2000])
def test_it_never_grows_beyond_what_the_kubelet_reads(name: str) -> None:
    assert len(last_words("é" * 4000, {"run_id": name})) <= 4096
    assert read_last_words(last_words("é" * 4000, {"run_id": name}).decode())[0].startswith("éé")
