"""What a decision starts from: sizes within bounds, and when to look again."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import (
    Observed,
)
from elastic_runtime.controller.decide.plan_context import PlanContext
from elastic_runtime.controller.decide.status_builder import StatusBuilder
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.limits import POD_PAUSES
from tests.unit.controller.jobs import job

NOW = 1_750_000_000.0


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
