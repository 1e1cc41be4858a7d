"""What a person and what a machine sees of the events."""

from __future__ import annotations

import io
import json
import os
import pty
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_runtime.events.event import known_events, read
from elastic_runtime.events.job_events import Hint, JobDone, JobJoinCommand
from elastic_runtime.events.node_events import AgentCrashEvent, NodeLeaving
from elastic_runtime.events.round_events import RoundSealed
from elastic_runtime.reporting import log
from elastic_runtime.reporting.log import TerminalRenderer, make_emit

Happened = tuple[str, dict[str, Any]]


def _event(name: str, /, **fields: Any) -> Happened:
    return name, fields


def _seen(*events: Happened, node: str = "") -> list[str]:
    """The lines of a console after these events."""
    stream = io.StringIO()
    emit = make_emit("console", stream, node)
    for name, fields in events:
        emit(read(name, fields))
    return stream.getvalue().splitlines()


def _round(number: int, nodes: int = 3, rank: int = 0, reason: str = "all are here") -> Happened:
    fields = {"round": number, "workers": nodes, "nodes": nodes, "reason": reason}
    return "round.sealed", {**fields, "group_rank": rank}


def _failed(reason: str, code: int = 1, **fields: Any) -> Happened:
    return _event("worker.failed", rank=1, exit_code=code, reason=reason, **fields)


FIRST = _round(1)
RECOVERED = _event("round.recovered", round=3, seconds=0.312, step=121)
RESUMED = _event("checkpoint.resumed", step=120, seconds=0.2, path="runs/x")
DONE = _event("job.done", seconds=12.3)


def test_a_fault_and_its_recovery_are_one_line() -> None:
    third = _round(3, reason="node b lost: its port refuses")
    left = _event("round.left", round=1, reason="x")
    saved = _event("checkpoint.saved", step=121, seconds=0.1)
    assert _seen(FIRST, left, third, RESUMED, saved, RECOVERED, DONE) == [
        "round 1: 3 workers on 3 nodes (all are here)",
        (
            "round 3: 3 workers on 3 nodes (node b lost: its port refuses) · recovered in 0.31 s · "
            "resumed at step 120"
        ),
        "done in 12 s",
    ]


def test_who_is_left_says_that_it_waits() -> None:
    waiting = _event(
        "job.waiting", reason="waiting for at least 2 nodes", have=1, minimum=2, maximum=2
    )
    assert _seen(_round(1, rank=1), _event("round.left", round=1), waiting, node="b") == [
        "waiting for nodes: 1 of 2 are here (waiting for at least 2 nodes)"
    ]


OUTSIDE = _event(
    "job.waiting", reason="waiting to be admitted", have=2, minimum=1, maximum=3, outside=True
)


def test_a_joiner_says_that_it_waits_and_when_it_does_no_more() -> None:
    assert _seen(OUTSIDE, _round(2, rank=2), _round(3, rank=2), node="b") == [
        "b: waiting to be admitted (2 nodes in the job)",
        "b: admitted: round 2: 3 workers on 3 nodes (all are here)",
    ]


def test_a_node_that_is_back_at_once_has_not_waited() -> None:
    assert _seen(_round(1, rank=2), OUTSIDE, _round(3, rank=2), node="b") == []
    console = TerminalRenderer("b")
    console.lines(read(*_round(1, rank=2)))
    assert console.lines(read(*OUTSIDE)) == []
    assert console.holds
    assert console.overdue() == ["b: waiting to be admitted (2 nodes in the job)"]
    assert console.lines(read(*_round(3, rank=2))) == [
        "b: admitted: round 3: 3 workers on 3 nodes (all are here)"
    ]


def test_a_recovery_tells_what_the_fault_has_cost() -> None:
    hung = _event("round.recovered", round=3, seconds=0.26, stalled=31.3)
    quick = _event("round.recovered", round=3, seconds=0.26, stalled=0.4)
    assert _seen(FIRST, _round(3), hung)[1:] == [
        (
            "round 3: 3 workers on 3 nodes (all are here) · recovered in 0.26 s, "
            "after 31 s without a step"
        )
    ]
    assert _seen(FIRST, _round(3), quick)[1].endswith("recovered in 0.26 s")
    assert _seen(hung) == ["round 3: recovered in 0.26 s, after 31 s without a step"]


def test_training_goes_on_without_the_store_once_it_has_begun() -> None:
    lost = _event("store.lost", why="refused")
    assert _seen(FIRST, lost)[1:] == ["the store does not answer (refused); training goes on"]


def test_the_first_round_is_shown_at_once() -> None:
    assert _seen(FIRST) == ["round 1: 3 workers on 3 nodes (all are here)"]
    assert _seen(_round(1, nodes=1)) == ["round 1: 1 worker on 1 node (all are here)"]
    assert _seen(FIRST, RESUMED)[1:] == ["resumed at step 120"]


def test_a_round_that_never_recovers_is_shown_before_what_comes_next() -> None:
    assert _seen(FIRST, _round(2, nodes=2), _round(3, nodes=1), DONE)[1:] == [
        "round 2: 2 workers on 2 nodes (all are here)",
        "round 3: 1 worker on 1 node (all are here)",
        "done in 12 s",
    ]


def test_a_round_whose_recovery_nobody_reports_is_shown_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "LONGEST_HOLD", 0.01)
    shown = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if "round 2" in text:
                shown.set()
            return super().write(text)

    emit = make_emit("console", Stream())
    for name, fields in (FIRST, _round(2)):
        emit(read(name, fields))
    assert shown.wait(10)


def test_one_node_tells_about_the_job_and_each_about_itself() -> None:
    killed = _event("worker.killed", rank=5, local_rank=0, exit_code=-9)
    events = (_round(1, rank=1), _round(3, rank=1), RESUMED, RECOVERED, killed, DONE)
    assert _seen(*events, node="b") == ["b: rank 5 was killed by SIGKILL"]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (_event("job.join_command", command="elastic-run x"), "another node joins with:"),
        (
            _event("job.waiting", reason="last call", have=1, minimum=2, maximum=4),
            "waiting for nodes: 1 of 2 are here (last call)",
        ),
        (_event("job.failed", reason="ValueError: x"), None),
        (_failed("ValueError: x\nmore"), "rank 1 failed: ValueError: x"),
        (_failed("", 3), "rank 1 failed with code 3"),
        (_failed("worker 1: ValueError: x"), "rank 1 failed: ValueError: x"),
        (_failed("worker 1 ended with exit code 2", 2), "rank 1 ended with exit code 2"),
        (_failed("worker 1: CheckpointError: x is a file"), None),
        (_failed("reset", echo=True), None),
        (_event("worker.killed", rank=1, exit_code=-15), "rank 1 was killed by SIGTERM"),
        (_event("worker.killed", rank=1, exit_code=0), "rank 1 was killed"),
        (_event("worker.killed", rank=1, exit_code=-9, by_agent=True), None),
        (
            _event("worker.hangs", local_ranks=[0], ranks=[4], why="hung at train.py:88"),
            "rank 4 hung at train.py:88; being replaced",
        ),
        (_event("worker.hangs", why="no step for 62 s: all wait"), "no step for 62 s: all wait"),
        (
            _event("worker.stuck", local_ranks=[0, 1], ranks=[4, 5], why="it does not answer"),
            "each of ranks 4, 5 is stuck: it does not answer; being replaced",
        ),
        (
            _event("checkpoint.resumed", path="x", seconds=0.2, step=90, reached=102),
            "resumed at step 90 (12 steps again)",
        ),
        (
            _event("checkpoint.resumed", path="x", seconds=0.2, step=90, reached=90),
            "resumed at step 90",
        ),
        (
            _event("state.loaded", step=90, reached=91, reason="no rank is whole"),
            "went back to step 90 (1 step again): no rank is whole",
        ),
        (
            _event(
                "job.done",
                seconds=120.0,
                restarts={"failed": 1, "killed": 2, "lost": 0, "planned": 0},
                lost_steps=12,
                stalled=31.4,
                goodput=0.716,
            ),
            (
                "done in 2 min 0 s: 3 restarts (1 failed, 2 killed), 12 steps made again, "
                "31 s stalled, goodput 72 %"
            ),
        ),
        (
            _event("job.done", seconds=12.3, restarts={"failed": 0}, lost_steps=0, stalled=0.0),
            "done in 12 s",
        ),
        (
            _event("fault.retry", reason="ValueError: x", failures=1, budget=3),
            "trying again (failure 1 of 3 allowed): ValueError: x",
        ),
        (_event("store.lost", why="refused"), "the store does not answer (refused); trying again"),
        (_event("checkpoint.saved", step=40, seconds=0.2), None),
        (_event("round.left", round=2, reason="x"), None),
        (_event("something.new", a=1), None),
    ],
)
def test_each_event_on_a_console(event: Happened, line: str | None) -> None:
    """Of those that are just a sentence, which docs/events.md has, one stands for all."""
    assert _seen(event)[:1] == ([] if line is None else [line])


@settings(max_examples=1000)
@given(
    st.sampled_from(sorted(known_events())),
    st.dictionaries(
        st.sampled_from(["reason", "rank", "round", "exit_code", "group_rank", "seconds", "nodes"]),
        st.sampled_from([None, 0, -9, 10**9, 2.5, True, "", "x\ny", [], [1, "a"]]),
    ),
)
def test_no_field_makes_a_console_fail(name: str, fields: dict[str, Any]) -> None:
    for _ in range(2):
        for line in TerminalRenderer("b").lines(read(name, fields)):
            assert isinstance(line, str)


def test_json_has_a_line_for_everything() -> None:
    stream = io.StringIO()
    emit = make_emit("json", stream, "b")
    emit(RoundSealed(1, workers=3, nodes=3, reason="alle sind da · ja", group_rank=1))
    emit(read("something.new", {"what": [1, 2], "path": None}))
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert list(first)[:4] == ["timestamp", "level", "event", "node"]
    assert (first["event"], first["node"], first["level"]) == ("round.sealed", "b", "info")
    assert first["reason"] == "alle sind da · ja"
    assert (second["what"], second["path"], second["level"]) == ([1, 2], None, "debug")


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_are_never_written(format: str) -> None:
    stream = io.StringIO()
    emit = make_emit(format, stream)
    emit(NodeLeaving("etcd://me:geheim@h is down", extra={"etcd_password": "geheim"}))
    emit(JobJoinCommand("x --rdzv-endpoint etcd://me:geheim@h/p"))
    emit(read("x", {"inner": {"auth_token": "geheim"}, "urls": ["etcd://me:geheim@h"]}))
    assert stream.getvalue()
    assert "geheim" not in stream.getvalue()


def test_auto_is_console_on_a_terminal_and_json_elsewhere() -> None:
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen, open(theirs, "w") as terminal:
        make_emit("auto", terminal)(JobDone(1))
        assert screen.read(100) == b"done in 1.0 s\r\n"
    pipe = io.StringIO()
    make_emit("auto", pipe)(JobDone(1))
    assert json.loads(pipe.getvalue())["event"] == "job.done"


def test_a_stream_that_has_gone_away_is_no_fault() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        with pytest.raises(BrokenPipeError):
            os.write(writer, b"x")
        make_emit("json", stream)(JobDone(1))
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what is left in the buffer goes there


def test_lines_of_threads_do_not_mix() -> None:
    stream = io.StringIO()
    emit = make_emit("json", stream)

    def work() -> None:
        for _ in range(100):
            emit(Hint("x", "a" * 200))

    with ThreadPoolExecutor(4) as pool:
        for working in [pool.submit(work) for _ in range(4)]:
            working.result()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 400
    assert all(json.loads(line)["text"] == "a" * 200 for line in lines)


def test_a_crash_is_an_error_to_who_reads_json_and_the_last_words_of_the_command() -> None:
    stream = io.StringIO()
    make_emit("json", stream)(AgentCrashEvent("KeyError: 1", "/tmp/x.txt"))
    assert json.loads(stream.getvalue())["level"] == "error"
    assert _seen(_event("agent.crashed", reason="KeyError: 1", file="/tmp/x.txt")) == []
