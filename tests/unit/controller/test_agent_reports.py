"""What comes from pods, whoever wrote the server in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_runtime.controller.agent_reports import pause_without_answer
from elastic_runtime.controller.decide.job_types import AgentReport
from elastic_runtime.controller.read_report import read_report
from elastic_runtime.events.round_events import RESTART_CLASSES

SAID = {
    "run_id": "u-0",
    "node": "a",
    "round": 3,
    "world": 2,
    "step": 7,
    "checkpoint_step": None,
    "ready": True,
    "restarts": {"failed": 1},
}


def test_what_an_agent_says_is_understood() -> None:
    restarts = {name: int(name == "failed") for name in RESTART_CLASSES}
    assert read_report(json.dumps(SAID).encode()) == AgentReport("u-0", 3, 2, 7, -1, restarts, True)


@pytest.mark.parametrize(
    "change",
    [
        {"round": float("inf")},
        {"round": float("nan")},
        {"round": 1.5},
        {"round": "3"},
        {"round": -1},
        {"world": [2]},
        {"step": 2**63},
        {"step": -2},
        {"restarts": [1]},
        {"restarts": {"failed": {}}},
    ],
)
def test_what_no_agent_says_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no"):
        read_report(json.dumps({**SAID, **change}).encode())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 60_000, b'{"round": 1e999}']
)
def test_what_is_no_report_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_report(body)


def test_pods_that_may_still_be_starting_are_asked_often() -> None:
    assert [pause_without_answer(n, age=30.0) for n in (1, 2, 6, 99)] == [1, 2, 2, 2]
    assert [pause_without_answer(n, age=300.0) for n in (1, 2, 6, 99)] == [1, 2, 32, 60]
