"""What agents say of their job, as they answer and in last words: anybody may write anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_runtime.controller.agent_reports import pause_without_answer
from elastic_runtime.controller.decide.job_types import AgentReport
from elastic_runtime.controller.read_report import read_last_report, read_report
from elastic_runtime.events.round_events import RESTART_CLASSES
from elastic_runtime.reporting.last_words import last_words, read_last_words

SAID: dict[str, Any] = {
    "run_id": "u-0",
    "round": 3,
    "world": 8,
    "nodes": 2,
    "step": 7,
    "checkpoint_step": 5,
    "ready": True,
    "restarts": {"failed": 1, "lost": 2},
}
NO_RESTARTS = dict.fromkeys(RESTART_CLASSES, 0)
READ = AgentReport(**{**SAID, "restarts": {**NO_RESTARTS, "failed": 1, "lost": 2}})


def test_the_report_that_an_agent_leaves_is_read() -> None:
    _, report = read_last_words(last_words("worker 3 has failed", SAID).decode())
    assert read_last_report(report) == READ


@pytest.mark.parametrize(
    "text",
    ["{}", '{"restarts": null, "step": null, "round": null}', '{"level": "info", "msg": "bye"}'],
)
def test_an_object_that_says_nothing_of_training_is_a_report_without_news(text: str) -> None:
    assert read_last_report(text) == AgentReport(restarts=NO_RESTARTS)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "killed", "{", '{"round": 3', "[1]", "[]", "3", "null", "true", '"text"', "NaN"),
        *("\x00", "\ud800"),
        pytest.param("[" * 60_000, id="too deep a list"),
        pytest.param('{"run_id":' * 60_000, id="too deep an object"),
        pytest.param("9" * 5000, id="too long a number"),
    ],
)
def test_what_is_no_object_is_no_report(text: str) -> None:
    assert read_last_report(text) is None


WRONG: dict[str, list[Any]] = {
    "round": ["3", -1, float("nan")],
    "world": [1.5, 2**31],
    "nodes": [[2], 2**31],
    "step": [2**63, -2],
    "checkpoint_step": [float("inf")],
    "restarts": [[1], {"failed": "1"}, {"lost": 2**31}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_an_object_of_another_program_is_no_report(name: str, value: object) -> None:
    assert read_last_report(json.dumps({**SAID, name: value})) is None


@pytest.mark.parametrize(
    ("said", "percent"),
    [(0.914, 91), (1, 100), (0, 0), (1.5, -1), (-0.1, -1), ("much", -1), (None, -1), (True, -1)],
)
def test_goodput_is_read_in_percent(said: object, percent: int) -> None:
    report = read_last_report(json.dumps({"run_id": "r", "goodput": said}))
    assert report is not None
    assert report.goodput == percent


def test_a_long_fault_is_cut_and_the_largest_count_that_a_status_can_hold_is_read() -> None:
    most = 2**31 - 1
    said = {"run_id": "r", "fault": "word " * 500, "world": most, "nodes": most}
    report = read_last_report(json.dumps(said))
    assert report is not None
    assert report.fault.startswith("word word")
    assert len(report.fault) <= 160
    assert (report.world, report.nodes) == (most, most)


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"round": 1e999}'])
def test_what_no_agent_sends_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_report(body)


def test_pods_that_may_still_be_starting_are_asked_often() -> None:
    assert [pause_without_answer(n, age=30.0) for n in (1, 2, 6, 99)] == [1, 2, 2, 2]
    assert [pause_without_answer(n, age=300.0) for n in (1, 2, 6, 99)] == [1, 2, 32, 60]
