"""What is done about a job whose pods run, rule by rule: its beginning, its size, its rests."""

from __future__ import annotations

import pytest

from elastic_runtime.controller.decide.job_types import (
    AgentReport,
    ApplyManifest,
    CreatePod,
)
from elastic_runtime.kubernetes.api_times import parse_time
from tests.unit.controller.jobs import CLASSIC, UID, job
from tests.unit.controller.simulated import BEGINNING, Cluster, running

# ---------------------------------------------------------------- the beginning


def test_a_new_job_gets_its_store_first_and_then_all_its_pods() -> None:
    cluster = Cluster(job(replicas=3), address="")
    first = cluster.step()
    made = {(each.kind, each.name) for each in first.actions if isinstance(each, ApplyManifest)}
    assert made == {
        ("Service", "digits"),
        ("Service", "digits-etcd"),
        ("Pod", "digits-etcd"),
        ("PodDisruptionBudget", "digits"),
    }
    cluster.settle()
    assert not cluster.pods  # nobody knows where to meet
    assert cluster.condition("Running")["reason"] == "WaitingForEtcd"
    cluster.services["digits-etcd"] = "10.0.0.9"
    plan = cluster.step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [0, 1, 2]
    args = cluster.manifests["digits-worker-0"]["spec"]["containers"][0]["args"]
    assert "--rdzv_endpoint=10.0.0.9:2379" in args


def test_a_classic_job_brings_its_own_store() -> None:
    cluster = Cluster(CLASSIC)
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert cluster.etcd is None
    assert list(cluster.services) == ["imagenet"]


def test_created_and_start_time_are_set() -> None:
    cluster = Cluster(job())
    cluster.step()
    assert cluster.holds("Created")
    assert parse_time(cluster.status["startTime"]) == BEGINNING
    assert cluster.status["observedGeneration"] == 1
    assert cluster.condition("Created")["observedGeneration"] == 1
    assert cluster.status["selector"] == "job-name=digits,replica-type=worker"
    assert cluster.status["restartCount"] == 0
    assert "Accepted" in cluster.reasons()


def test_replicas_that_are_left_out_are_the_minimum() -> None:
    cluster = Cluster(job(replicas=None, minReplicas=2))
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_nothing_waits_for_pods_above_the_minimum() -> None:
    cluster = Cluster(job(replicas=4, minReplicas=2))
    cluster.settle()
    cluster.run(0)
    cluster.settle()
    assert not cluster.holds("Running")
    assert "1 of 4 pods run, 2 are needed" in cluster.condition("Running")["message"]
    cluster.run(1)
    cluster.change(3, unschedulable="0/3 nodes are available")
    cluster.settle()
    assert cluster.holds("Running")
    assert cluster.indices == [0, 1, 2, 3]  # the others join later
    assert not cluster.reasons("Warning")
    worker = cluster.status["replicaStatuses"]["Worker"]
    assert worker == {"active": 4, "ready": 2, "pending": 2, "succeeded": 0, "failed": 0}


def test_running_is_what_agents_say_where_they_say_it() -> None:
    cluster = running()
    other = Cluster(job())
    other.settle()
    other.run()
    other.report = AgentReport(f"{UID}-0", restarts={})
    other.settle()
    assert other.condition("Running")["reason"] == "Rendezvous"
    other.report = AgentReport(f"{UID}-0", round=1, world=4, step=7, checkpoint_step=5, ready=True)
    other.settle()
    assert other.holds("Running")
    assert [other.status[name] for name in ("round", "worldSize", "step")] == [1, 4, 7]
    assert other.status["lastCheckpointStep"] == 5
    other.report = AgentReport(f"{UID}-0")
    other.settle()
    assert not other.holds("Running")  # an agent that has just begun again
    assert (other.status["round"], other.status["worldSize"]) == (1, 4)
    assert "round" not in cluster.status


def test_a_newcomer_who_knows_nothing_makes_no_loss_count_twice() -> None:
    cluster = running()
    for report in (
        AgentReport(f"{UID}-0", round=2, world=1, restarts={"lost": 1}, ready=True),
        AgentReport(f"{UID}-0"),
        AgentReport(f"{UID}-0", round=3, world=2, restarts={"lost": 1}, ready=True),
    ):
        cluster.report = report
        cluster.settle()
    assert cluster.status["restarts"]["lost"] == cluster.status["restartCount"] == 1


def test_agents_are_given_time_to_report() -> None:
    cluster = Cluster(job())
    cluster.settle()
    cluster.run(ago=0)
    plan = cluster.settle()
    assert cluster.condition("Running")["reason"] == "Rendezvous"
    assert plan.wake_at == cluster.now + 15
    cluster.now += 15  # a classic image, which never reports
    cluster.settle()
    assert cluster.holds("Running")


def test_steps_are_not_written_each_time() -> None:
    cluster = running()
    cluster.report = AgentReport(round=1, world=2, step=1, ready=True)
    cluster.settle()
    cluster.report = AgentReport(round=1, world=2, step=2, ready=True)
    cluster.now += 5
    assert cluster.settle().status["step"] == 1
    cluster.now += 30
    assert cluster.settle().status["step"] == 2


# ---------------------------------------------------------------- size


def test_a_larger_size_is_one_operation() -> None:
    cluster = running(1)
    cluster.edit(replicas=3)
    plan = cluster.step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [1, 2]
    assert [event.message for event in plan.events] == ["from 1 to 3 pods"]
    assert cluster.status["observedGeneration"] == 2
    assert not cluster.holds("Restarting")


def test_a_smaller_size_ends_the_highest_pods_at_once() -> None:
    cluster = running(4)
    cluster.edit(replicas=2)
    plan = cluster.step()
    assert [each.name for each in plan.actions] == ["digits-worker-3", "digits-worker-2"]
    assert all(each.grace is None for each in plan.actions)  # what the pod says itself
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert not cluster.holds("Restarting")


@pytest.mark.parametrize("before", [1, 2])
def test_pods_that_run_are_kept_until_enough_run_below_them(before: int) -> None:
    cluster = running(4, minReplicas=before)
    cluster.vanish(0)
    cluster.edit(replicas=2, minReplicas=2)
    cluster.settle()
    assert cluster.indices == [0, 1, 2]
    cluster.run()
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_a_size_that_comes_back_waits_for_the_name() -> None:
    cluster = running(2)
    cluster.edit(replicas=1)
    cluster.settle()
    cluster.edit(replicas=2)
    cluster.settle()
    assert [pod.deleting for pod in cluster.pods.values()] == [False, True]
    assert not cluster.holds("Restarting")  # as it was asked to
    assert "PodReplaced" not in cluster.reasons()
    cluster.vanish()
    cluster.settle()
    assert cluster.indices == [0, 1]


@pytest.mark.parametrize(("replicas", "pods"), [(4, 6), (3, 3)])
def test_spares_are_kept_beyond_the_maximum(replicas: int, pods: int) -> None:
    assert len(running(replicas, spares=2).indices) == pods


def test_bounds_that_change_hold_when_no_pod_of_the_old_ones_is_left() -> None:
    cluster = running(2)
    cluster.edit(maxReplicas=6, replicas=3)
    cluster.settle()
    args = cluster.manifests["digits-worker-2"]["spec"]["containers"][0]["args"]
    assert "--nnodes=1:4" in args
    assert "BoundsKept" in cluster.reasons()
    for suspend in (True, False):
        cluster.edit(suspend=suspend)
        cluster.settle()
        cluster.vanish()
        cluster.settle()
    args = cluster.manifests["digits-worker-0"]["spec"]["containers"][0]["args"]
    assert "--nnodes=1:6" in args


def test_pods_go_on_with_the_minimum_that_they_were_launched_with() -> None:
    cluster = running(3)
    cluster.edit(minReplicas=3)
    cluster.vanish(2)
    cluster.settle()
    assert cluster.holds("Running")  # the agents train with two
    other = running(3, minReplicas=3)
    other.edit(minReplicas=1, replicas=1)
    other.settle()
    assert other.indices == [0, 1, 2]  # with fewer they would wait for ever


def test_the_disruption_budget_follows_the_minimum() -> None:
    cluster = running(3)
    cluster.edit(minReplicas=2)
    cluster.settle()
    assert cluster.pdb == 2


# ---------------------------------------------------------------- suspend and resume


def test_suspending_drains_to_nothing_and_resuming_goes_on() -> None:
    cluster = running(2)
    cluster.edit(suspend=True)
    cluster.settle()
    assert not cluster.holds("Suspended")  # they are saving
    assert cluster.condition("Running")["reason"] == "Suspending"
    assert cluster.etcd
    cluster.vanish()
    cluster.settle()
    assert cluster.holds("Suspended")
    assert "startTime" not in cluster.status
    assert cluster.etcd is None
    assert cluster.pdb is None
    cluster.now += 100
    cluster.edit(suspend=False)
    cluster.settle()
    assert not cluster.holds("Suspended")
    assert cluster.indices == [0, 1]
    assert cluster.status["attempt"] == 0
    assert parse_time(cluster.status["startTime"]) == cluster.now
    assert not cluster.holds("Restarting")
    assert [reason for reason in cluster.reasons() if reason in ("Suspended", "Resumed")] == [
        "Suspended",
        "Resumed",
    ]


def test_resuming_before_the_last_pod_is_gone_restarts_nothing() -> None:
    cluster = running(1)
    for suspend in (True, False):
        cluster.edit(suspend=suspend)
        cluster.settle()
    cluster.vanish()
    cluster.settle()
    assert cluster.indices == [0]
    assert not cluster.holds("Restarting")
    assert cluster.status["restartCount"] == 0


def test_a_job_can_begin_suspended() -> None:
    cluster = Cluster(job(suspend=True))
    cluster.settle()
    assert cluster.holds("Created")
    assert cluster.holds("Suspended")
    assert "startTime" not in cluster.status
    assert not cluster.pods


def test_a_success_counts_though_the_job_is_suspended() -> None:
    cluster = running(1)
    cluster.end(0, 0)
    cluster.edit(suspend=True)
    cluster.settle()
    assert cluster.holds("Succeeded")


def test_a_job_that_somebody_else_manages_is_left_alone() -> None:
    cluster = Cluster(job(managedBy="kueue.x-k8s.io/multikueue"))
    plan = cluster.step()
    assert (plan.actions, plan.events, plan.status) == ((), (), {})
    assert "multikueue" in plan.reason
    ours = Cluster(job(managedBy="elastic.pytorch.org/controller"))
    ours.settle()
    assert ours.indices == [0, 1]
