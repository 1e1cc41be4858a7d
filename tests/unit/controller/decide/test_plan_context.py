"""What a decision starts from: sizes within bounds, the pods of its attempt, and when to look."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import (
    RUNNING,
    AgentReport,
    Observed,
    PodView,
    Problem,
)
from elastic_runtime.controller.decide.plan_context import PlanContext
from elastic_runtime.controller.decide.status_builder import StatusBuilder
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.limits import POD_PAUSES
from tests.unit.controller.jobs import job

NOW = 1_750_000_000.0


def context_of(
    observed: Observed | None = None, status: dict[str, Any] | None = None, **spec: Any
) -> PlanContext:
    made = {**job(**spec), "status": status or {}}
    return PlanContext(
        JobSpec.of(made), StatusBuilder(made, NOW), observed or Observed(), NOW, "etcd:1"
    )


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
    status = {"memory": {"launch": launched}}
    context = context_of(status=status, replicas=replicas, spares=1)
    assert (context.desired, context.wanted) == (desired, wanted)


def test_pods_of_another_attempt_are_former_ones() -> None:
    pods = (
        PodView("b", 1, "b", attempt=2),
        PodView("a", 0, "a", attempt=2, phase=RUNNING),
        PodView("old", 0, "old", attempt=1, phase=RUNNING, reason="NodeLost"),
    )
    context = context_of(Observed(pods=pods), {"attempt": 2})
    assert [pod.name for pod in context.pods] == ["a", "b"]
    assert [pod.name for pod in context.running] == ["a"]
    assert [pod.name for pod in context.former] == ["old"]
    assert not context.ending, "nobody waits for a pod whose node is lost"
    at_work = PodView("old", 0, "old", attempt=1, phase=RUNNING)
    assert context_of(Observed(pods=(at_work,)), {"attempt": 2}).ending


def test_what_agents_of_another_attempt_say_is_no_news() -> None:
    status = {"attempt": 1}
    now, before = (context_of(status={"attempt": n}).spec.run_id(n) for n in (1, 0))
    assert now != before
    for said, heard in ((now, True), ("", True), (before, False)):
        context = context_of(Observed(report=AgentReport(run_id=said)), status)
        assert (context.report is not None) == heard


def test_the_next_look_is_at_the_earliest_moment_and_never_in_the_past() -> None:
    context = context_of()
    context.wake_at(NOW + 9)
    context.wake_at(NOW + 5)
    context.wake_at(NOW + 7)
    assert context.finish("").wake_at == NOW + 5
    context.wake_at(NOW - 5)
    assert context.finish("").wake_at == NOW


def test_a_pause_that_a_wrong_clock_has_set_holds_nothing_up() -> None:
    context = context_of()
    assert context.is_ahead(NOW + 1)
    assert not context.is_ahead(NOW)
    assert not context.is_ahead(NOW + POD_PAUSES.longest + 2)


def test_a_problem_is_announced_once() -> None:
    context = context_of()
    context.problems.append(Problem("QuotaExceeded", "no more pods"))
    first = context.finish("because")
    assert [event.reason for event in first.events] == ["QuotaExceeded"]
    assert first.reason == "because"
    again = context_of(status=dict(first.status))
    again.problems.append(Problem("QuotaExceeded", "no more pods"))
    assert again.finish("").events == ()
