"""What people read of a job: why it failed, how far it came, and nothing that is not so."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import AgentReport
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster, begun, running


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("there is no option --mox-restarts", "there is no option --mox-restarts"),
        ("", "a flag, a file or a setting is wrong"),
        ("word " * 500, "word word"),
    ],
    ids=["what the agent said last", "its code", "cut"],
)
def test_why_a_setting_is_wrong(words: str, told: str) -> None:
    cluster = running(1)
    cluster.end(0, 2, message=words).settle()
    for text in (cluster.condition("Failed")["message"], cluster.events[-1].message):
        assert text.startswith(f"digits-worker-0 ended: exit code 2, {told}")
        assert len(text) < 400


def test_how_far_a_job_came_is_what_its_agents_said_last(cluster: Cluster) -> None:
    cluster.say(run_id="6f1c-0", round=2, world=2, step=1, checkpoint_step=-1, ready=True).settle()
    cluster.end(0, 0)
    last = AgentReport("6f1c-0", 2, 2, step=120, checkpoint_step=118)
    cluster.change(0, last_report=last).end(1, 0).settle()
    assert cluster.holds("Succeeded")
    status = cluster.status
    assert (status["step"], status["lastCheckpointStep"], status["round"]) == (120, 118, 2)


def test_the_last_word_of_another_run_is_none_of_this_job() -> None:
    cluster = running(1)
    cluster.say(run_id="6f1c-0", round=2, world=1, step=7, ready=True).settle()
    cluster.end(0, 0).change(0, last_report=AgentReport("another", 9, 9, step=999)).settle()
    assert (cluster.status["step"], cluster.status["round"]) == (7, 2)


@pytest.mark.parametrize(
    "leave", [lambda it: it.edit(suspend=True), lambda it: it.delete(0).delete(1)]
)
def test_a_job_without_pods_has_no_world(cluster: Cluster, leave: Any) -> None:
    cluster.say(run_id="6f1c-0", round=1, world=2, step=7, ready=True).settle()
    assert cluster.status["worldSize"] == 2
    leave(cluster).settle()
    assert cluster.status["worldSize"] == 0
    cluster.vanish().settle()
    assert (cluster.status["worldSize"], cluster.status["step"]) == (0, 7)


def test_a_pod_that_finds_no_place_at_first_is_not_told() -> None:
    cluster = begun(job(replicas=1))
    cluster.change(0, unschedulable="0/1 nodes are available", unplaced_since=cluster.now)
    plan = cluster.settle()
    assert (plan.wake_at, cluster.reasons("Warning")) == (cluster.now + 10, [])
    assert cluster.condition("Running")["reason"] == "PodsPending"
    cluster.wake().settle()
    assert cluster.reasons("Warning") == ["Unschedulable"]
    assert cluster.condition("Running")["reason"] == "Unschedulable"


def test_the_state_is_the_conditions_in_a_word() -> None:
    cluster = begun(job(backoffLimit=1))
    assert cluster.status["state"] == "Pending"
    cluster.run().settle()
    assert cluster.status["state"] == "Running"
    cluster.end(0, 137).settle()
    assert cluster.status["state"] == "Restarting"
    cluster.edit(suspend=True).settle()
    cluster.vanish().settle()
    assert cluster.status["state"] == "Suspended"
    cluster = running(1)
    cluster.end(0, 1).settle()
    assert cluster.status["state"] == "Failed"


def test_the_last_fault_is_what_agents_say_or_how_a_pod_ended(cluster: Cluster) -> None:
    said = {"world": 2, "restarts": {"killed": 1}, "ready": True, "fault": "worker 1 was killed"}
    cluster.say(round=2, goodput=91, **said).settle()
    assert cluster.status["lastFault"] == "worker 1 was killed"
    since = cluster.status["lastFaultTime"]
    cluster.wait(60).say(round=3, step=7, **said).settle()
    assert cluster.status["goodput"] == "91%"
    assert cluster.status["lastFaultTime"] == since, "it is no new one"
    cluster.delete(1).settle()
    assert cluster.status["lastFault"] == "worker 1 was killed", "to be taken away is no fault"
    cluster.end(0, 137).settle()
    assert cluster.status["lastFault"] == "digits-worker-0 ended: exit code 137"
    assert cluster.status["lastFaultTime"] > since
