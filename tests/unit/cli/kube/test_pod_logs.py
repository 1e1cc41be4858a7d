"""Lines of logs: taken apart, chosen, and known again when a stream repeats them."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.cli.kube.pod_logs import LogFilter, LogLine, _PodStream, parse_line, role_of


def _line(at: int, text: str = "") -> LogLine:
    return LogLine("worker-0", at, text.encode())


def _pod(name: str, index: str | None) -> dict[str, Any]:
    labels = {} if index is None else {"replica-index": index}
    return {"metadata": {"name": name, "labels": labels}}


PODS = [_pod("one-worker-10", "10"), _pod("one-etcd", None), _pod("one-worker-1", "1")]


@pytest.mark.parametrize(
    ("line", "at", "text"),
    [
        (b"1970-01-01T00:00:02.000000003Z [default0]: a  b", 2_000_000_003, b"[default0]: a  b"),
        (b"1970-01-01T01:00:02.5+01:00 x", 2_500_000_000, b"x"),
        (b"1970-01-01T00:00:02Z ", 2_000_000_000, b""),
        (b"1970-01-01T00:00:02Z", 2_000_000_000, b""),
        (b"no time at all", 7, b"no time at all"),
        (b"", 7, b""),
    ],
)
def test_a_line_is_a_time_and_a_text(line: bytes, at: int, text: bytes) -> None:
    assert parse_line("p", line, 7) == LogLine("p", at, text)


@pytest.mark.parametrize(
    ("pod", "names"),
    [
        ("", ["one-worker-1", "one-worker-10"]),
        ("1", ["one-worker-1"]),
        ("worker-10", ["one-worker-10"]),
        ("one-worker-10", ["one-worker-10"]),
        ("etcd", ["one-etcd"]),
        ("worker-2", []),
    ],
)
def test_a_pod_is_meant_by_any_of_its_names(pod: str, names: list[str]) -> None:
    queued = _pod("one-worker-3-mwzc2aoc", "3")
    for name in ("3", "worker-3", "worker-3-mwzc2aoc", "one-worker-3-mwzc2aoc"):
        assert list(LogFilter(pod=name).pods("one", [*PODS, queued])) == [queued]
    found = LogFilter(pod=pod).pods("one", PODS)
    assert [one["metadata"]["name"] for one in found] == names


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("[default1]:x", True),
        ("[default11]:x", False),
        ("[default0]:[default1]:x", False),
        ("x", False),
        ('{"event": "worker.line", "rank": 1, "line": "x"}', True),
        ('{"event": "worker.line", "rank": 11, "line": "x"}', False),
        ('{"event": "worker.failed", "rank": 1}', False),
        ('{"event": "worker.line", "ra', False),
    ],
)
def test_a_rank_is_known_by_what_elastic_run_puts_in_front(text: str, taken: bool) -> None:
    assert LogFilter(rank=1).matches(_line(1, text)) is taken
    assert LogFilter().matches(_line(1, text))


def test_a_role_that_ends_in_a_digit_is_not_taken_for_a_rank() -> None:
    assert not LogFilter(rank=3, role="default").matches(_line(1, "[trainer23]:x"))
    assert LogFilter(rank=3, role="trainer2").matches(_line(1, "[trainer23]:x"))


@pytest.mark.parametrize(
    ("container", "role"),
    [
        ({}, "default"),
        ({"args": ["--role", "a", "train.py"]}, "a"),
        ({"args": ["--max-restarts", "3", "--role=a", "train.py"]}, "a"),
        ({"args": ["train.py", "--role", "teacher"]}, "default"),
        ({"env": [{"name": "PET_ROLE", "value": "b"}]}, "b"),
        ({"args": ["--role=a"], "env": [{"name": "ELASTIC_ROLE", "value": "b"}]}, "a"),
    ],
)
def test_the_role_is_what_the_pods_were_told(container: dict[str, Any], role: str) -> None:
    template = {"spec": {"containers": [{"name": "elasticjob-worker", **container}]}}
    assert role_of({"spec": {"replicaSpecs": {"Worker": {"template": template}}}}) == role


def test_what_a_new_stream_repeats_is_not_shown_again() -> None:
    stream = _PodStream({})
    assert stream.since() is None
    first = [_line(1, "a"), _line(2, "b"), _line(2, "c")]
    assert list(stream.new(first)) == first
    # The second stream begins in the middle, and has more of the last moment and of later ones.
    second = [_line(2, "b"), _line(2, "c"), _line(2, "d"), _line(3, "e")]
    assert [line.text for line in stream.new(second)] == [b"d", b"e"]
    third = [_line(2, "d"), _line(3, "e")]
    assert list(stream.new(third)) == []
    assert [line.text for line in stream.new([_line(3, "e"), _line(4, "f")])] == [b"f"]
    assert list(stream.new([_line(86_400 * 10**9 + 5)]))
    assert stream.since() == "1970-01-02T00:00:00Z"


def test_two_lines_of_one_moment_are_both_new() -> None:
    stream = _PodStream({})
    same = [_line(5, "a"), _line(5, "b")]
    assert list(stream.new(same)) == same
    assert [line.text for line in stream.new([*same, _line(5, "c")])] == [b"c"]
    assert [line.text for line in stream.new([*same, _line(5, "c"), _line(5, "d")])] == [b"d"]
