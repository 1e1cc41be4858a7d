"""What is written into the status of a job: conditions, pods that are counted, problems."""

from __future__ import annotations

from typing import Any

from elastic_runtime.controller.decide.job_types import PodView, Problem
from elastic_runtime.controller.decide.status_builder import (
    CREATED,
    RUNNING,
    SUSPENDED,
    StatusBuilder,
)
from elastic_runtime.kubernetes.api_times import format_time
from tests.unit.controller.jobs import job

NOW = 1_750_000_000.0


def builder(status: dict[str, Any] | None = None, now: float = NOW) -> StatusBuilder:
    return StatusBuilder({**job(), "status": status or {}}, now)


def test_a_condition_keeps_the_time_at_which_it_turned() -> None:
    first = builder()
    assert first.set_condition(RUNNING, True, "Started", "it runs")
    second = builder(first.build(), NOW + 60)
    assert not second.set_condition(RUNNING, True, "Resized", "it runs with more pods")
    (condition,) = second.build()["conditions"]
    assert condition["lastTransitionTime"] == format_time(NOW)
    assert (condition["reason"], second.holds(RUNNING)) == ("Resized", True)
    assert second.set_condition(RUNNING, False, "Stopped", "it does not")
    assert second.build()["conditions"][0]["lastTransitionTime"] == format_time(NOW + 60)


def test_what_was_never_the_case_is_not_denied() -> None:
    status = builder()
    assert not status.set_condition(SUSPENDED, False, "Resumed", "")
    assert status.set_condition(CREATED, False, "InvalidSpec", "")
    assert [each["type"] for each in status.build()["conditions"]] == [CREATED]


def test_pods_that_are_cleaned_up_still_count() -> None:
    first = builder()
    first.count_pods(
        [
            PodView("a", 0, "a", phase="Succeeded"),
            PodView("b", 1, "b", phase="Failed"),
            PodView("c", 2, "c", phase="Running", ready=True),
            PodView("d", 3, "d", phase="Pending"),
        ]
    )
    counted = first.values["replicaStatuses"]["Worker"]
    assert counted == {"active": 2, "ready": 1, "pending": 1, "succeeded": 1, "failed": 1}
    second = builder(first.build())
    second.count_pods([], keep_ended=True)
    assert second.values["replicaStatuses"]["Worker"]["succeeded"] == 1
    second.count_pods([])
    assert second.values["replicaStatuses"]["Worker"]["succeeded"] == 0


def test_a_problem_that_comes_back_is_announced_again() -> None:
    problem = Problem("QuotaExceeded", "no more pods")
    told = []
    status: dict[str, Any] = {}
    for problems in ([problem], [problem], [], [problem]):
        made = builder(status)
        made.report_problems(problems)
        told.append(len(made.events))
        status = made.build()
    assert told == [1, 0, 0, 1]
