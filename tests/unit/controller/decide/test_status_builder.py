"""What is written into the status of a job, and what of it the next decision knows."""

from __future__ import annotations

from typing import Any

from elastic_runtime.controller.decide.job_types import AgentReport, PodView, Problem
from elastic_runtime.controller.decide.status_builder import (
    CREATED,
    RUNNING,
    SUSPENDED,
    Memory,
    PodSlot,
    StatusBuilder,
)
from elastic_runtime.kubernetes.api_times import format_time
from elastic_runtime.limits import STATUS_STEP_INTERVAL
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


def test_what_is_remembered_is_read_back_also_from_a_newer_controller() -> None:
    memory = Memory(launch=(1, 4), begun=True, slots={3: PodSlot("u", falls=2)}, told=("x",))
    kept = memory.kept()
    assert "failures" not in kept, "what is empty is left out"
    newer = {**kept, "more": 1, "slots": {"3": {**kept["slots"]["3"], "more": 1}}}
    assert Memory.of(newer) == memory


def test_counts_of_agents_that_begin_anew_are_added() -> None:
    status = builder()
    for failed in (2, 3, 1):  # the last one is of the job's next incarnation
        status.apply_report(AgentReport(round=1, restarts={"failed": failed}))
    status.apply_report(AgentReport(round=0, restarts={}))  # a newcomer knows nothing
    assert status.values["restarts"]["failed"] == 4
    status.count_restarts({"planned": 5})
    assert status.values["restartCount"] == 4, "a planned change is no restart"


def test_a_step_is_not_written_all_the_time() -> None:
    first = builder()
    first.apply_report(AgentReport(round=1, world=2, step=10))
    soon = builder(first.build(), NOW + 1)
    soon.apply_report(AgentReport(round=1, world=2, step=11))
    assert soon.values["step"] == 10
    soon.apply_report(AgentReport(round=1, world=2, step=12), last=True)
    assert soon.values["step"] == 12
    later = builder(first.build(), NOW + STATUS_STEP_INTERVAL + 1)
    later.apply_report(AgentReport(round=1, world=2, step=13))
    assert later.values["step"] == 13


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
