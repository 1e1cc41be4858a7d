"""What a decision starts from, and what it writes into the status of a job."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import Observed, PodView, Problem
from elastic_runtime.controller.decide.plan_context import PlanContext
from elastic_runtime.controller.decide.status_builder import (
    CREATED,
    RUNNING,
    SUSPENDED,
    StatusBuilder,
)
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.kubernetes.api_times import format_time
from elastic_runtime.limits import POD_PAUSES
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


# ---------------------------------------------------------------- what a decision starts from


def context_of(status: dict[str, Any] | None = None, **spec: Any) -> PlanContext:
    made = {**job(**spec), "status": status or {}}
    return PlanContext(JobSpec.of(made), StatusBuilder(made, NOW), Observed(), NOW, "etcd:1")


@pytest.mark.parametrize(
    ("replicas", "launched", "desired", "wanted"),
    [
        (2, [], 2, 2),
        (4, [], 4, 5),  # a spare only beyond a full world: below it, it would be a member
        (1, [3, 4], 3, 3),  # agents were told 3 to 4, and go on saying so
        (4, [1, 6], 4, 4),
    ],
)
def test_sizes_stay_within_the_bounds_that_the_agents_were_started_with(
    replicas: int, launched: list[int], desired: int, wanted: int
) -> None:
    context = context_of({"memory": {"launch": launched}}, replicas=replicas, spares=1)
    assert (context.desired, context.wanted) == (desired, wanted)


def test_a_pause_that_a_wrong_clock_has_set_holds_nothing_up() -> None:
    context = context_of()
    assert context.is_ahead(NOW + 1)
    assert not context.is_ahead(NOW)
    assert not context.is_ahead(NOW + POD_PAUSES.longest + 2)


def test_the_next_look_is_at_the_earliest_moment_and_never_in_the_past() -> None:
    context = context_of()
    for moment in (NOW + 9, NOW + 5, NOW + 7):
        context.wake_at(moment)
    assert context.finish("").wake_at == NOW + 5
    context.wake_at(NOW - 5)
    assert context.finish("").wake_at == NOW
