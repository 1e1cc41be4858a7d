"""What is done about a job whose pods run, rule by rule: its beginning, its size, its rests."""

from __future__ import annotations

import pytest

from elastic_runtime.controller.decide.job_types import ApplyManifest, CreatePod
from elastic_runtime.kubernetes.api_times import parse_time
from tests.unit.controller.jobs import UID, job
from tests.unit.controller.simulated import BEGINNING, Cluster, begun, running

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
    assert cluster.holds("Created")
    assert parse_time(cluster.status["startTime"]) == BEGINNING
    assert cluster.status["observedGeneration"] == 1
    assert cluster.condition("Created")["observedGeneration"] == 1
    assert cluster.status["selector"] == "job-name=digits,replica-type=worker"
    assert cluster.status["restartCount"] == 0
    assert "Accepted" in cluster.reasons()
    cluster.settle()
    assert not cluster.pods  # nobody knows where to meet
    assert cluster.condition("Running")["reason"] == "WaitingForEtcd"
    cluster.services["digits-etcd"] = "10.0.0.9"
    plan = cluster.step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [0, 1, 2]
    assert "--rdzv_endpoint=10.0.0.9:2379" in cluster.worker(0)["args"]


def test_nothing_waits_for_pods_above_the_minimum() -> None:
    cluster = begun(job(replicas=4, minReplicas=2))
    cluster.run(0).settle()
    assert not cluster.holds("Running")
    assert "1 of 4 pods run, 2 are needed" in cluster.condition("Running")["message"]
    cluster.run(1).change(3, unschedulable="0/3 nodes are available").settle()
    assert cluster.holds("Running")
    assert cluster.indices == [0, 1, 2, 3]  # the others join later
    assert not cluster.reasons("Warning")
    worker = cluster.status["replicaStatuses"]["Worker"]
    assert worker == {"active": 4, "ready": 2, "pending": 2, "succeeded": 0, "failed": 0}


def test_running_is_what_agents_say_where_they_say_it(cluster: Cluster) -> None:
    cluster = begun(job())
    cluster.run().say(run_id=f"{UID}-0", restarts={}).settle()
    assert cluster.condition("Running")["reason"] == "Rendezvous"
    cluster.say(run_id=f"{UID}-0", round=1, world=4, step=7, checkpoint_step=5, ready=True).settle()
    assert cluster.holds("Running")
    assert [cluster.status[name] for name in ("round", "worldSize", "step")] == [1, 4, 7]
    assert cluster.status["lastCheckpointStep"] == 5
    cluster.say(run_id=f"{UID}-0").settle()
    assert not cluster.holds("Running")  # an agent that has just begun again
    assert (cluster.status["round"], cluster.status["worldSize"]) == (1, 4)


def test_a_newcomer_who_knows_nothing_makes_no_loss_count_twice(cluster: Cluster) -> None:
    cluster.say(round=2, world=1, restarts={"lost": 1}, ready=True).settle()
    cluster.say().settle()
    cluster.say(round=3, world=2, restarts={"lost": 1}, ready=True).settle()
    assert cluster.status["restarts"]["lost"] == cluster.status["restartCount"] == 1


def test_agents_are_given_time_to_report() -> None:
    cluster = begun(job())
    plan = cluster.run(ago=0).settle()
    assert cluster.condition("Running")["reason"] == "Rendezvous"
    assert plan.wake_at == cluster.now + 15
    cluster.wait(15).settle()  # a classic image, which never reports
    assert cluster.holds("Running")


def test_steps_are_not_written_each_time(cluster: Cluster) -> None:
    cluster.say(round=1, world=2, step=1, ready=True).settle()
    cluster.say(round=1, world=2, step=2, ready=True)
    assert cluster.wait(5).settle().status["step"] == 1
    assert cluster.wait(30).settle().status["step"] == 2


# ---------------------------------------------------------------- size


def test_another_size_is_one_operation_and_the_highest_pods_end() -> None:
    cluster = running(1)
    plan = cluster.edit(replicas=4).step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [1, 2, 3]
    assert [event.message for event in plan.events] == ["from 1 to 4 pods"]
    assert cluster.status["observedGeneration"] == 2
    cluster.run().settle()
    plan = cluster.edit(replicas=2).step()
    assert [each.name for each in plan.actions] == ["digits-worker-3", "digits-worker-2"]
    assert all(each.grace is None for each in plan.actions)  # what the pod says itself
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert not cluster.holds("Restarting")


@pytest.mark.parametrize("before", [1, 2])
def test_pods_that_run_are_kept_until_enough_run_below_them(before: int) -> None:
    cluster = running(4, minReplicas=before)
    cluster.vanish(0).edit(replicas=2, minReplicas=2).settle()
    assert cluster.indices == [0, 1, 2]
    cluster.run().settle()
    assert cluster.indices == [0, 1]


def test_a_size_that_comes_back_waits_for_the_name(cluster: Cluster) -> None:
    cluster.edit(replicas=1).settle()
    cluster.edit(replicas=2).settle()
    assert [pod.deleting for pod in cluster.pods.values()] == [False, True]
    assert not cluster.holds("Restarting")  # as it was asked to
    assert "PodReplaced" not in cluster.reasons()
    cluster.vanish().settle()
    assert cluster.indices == [0, 1]


@pytest.mark.parametrize(("replicas", "pods"), [(4, 6), (3, 3)])
def test_spares_are_kept_beyond_the_maximum(replicas: int, pods: int) -> None:
    assert len(running(replicas, spares=2).indices) == pods


def test_bounds_that_change_hold_when_no_pod_of_the_old_ones_is_left(cluster: Cluster) -> None:
    cluster.edit(maxReplicas=6, replicas=3).settle()
    assert "--nnodes=1:4" in cluster.worker(2)["args"]
    assert "BoundsKept" in cluster.reasons()
    for suspend in (True, False):
        cluster.edit(suspend=suspend).settle()
        cluster.vanish().settle()
    assert "--nnodes=1:6" in cluster.worker(0)["args"]


def test_pods_go_on_with_the_minimum_that_they_were_launched_with() -> None:
    cluster = running(3)
    cluster.edit(minReplicas=3).vanish(2).settle()
    assert cluster.holds("Running")  # the agents train with two
    assert cluster.pdb == 3
    other = running(3, minReplicas=3)
    other.edit(minReplicas=1, replicas=1).settle()
    assert other.indices == [0, 1, 2]  # with fewer they would wait for ever


# ---------------------------------------------------------------- suspend and resume


def test_suspending_drains_to_nothing_and_resuming_goes_on(cluster: Cluster) -> None:
    cluster.edit(suspend=True).settle()
    assert not cluster.holds("Suspended")  # they are saving
    assert cluster.condition("Running")["reason"] == "Suspending"
    assert cluster.etcd
    cluster.vanish().settle()
    assert cluster.holds("Suspended")
    assert "startTime" not in cluster.status
    assert cluster.etcd is None
    assert cluster.pdb is None
    cluster.wait(100).edit(suspend=False).settle()
    assert not cluster.holds("Suspended")
    assert cluster.indices == [0, 1]
    assert cluster.status["attempt"] == 0
    assert parse_time(cluster.status["startTime"]) == cluster.now
    assert not cluster.holds("Restarting")
    told = [reason for reason in cluster.reasons() if reason in ("Suspended", "Resumed")]
    assert told == ["Suspended", "Resumed"]


def test_resuming_before_the_last_pod_is_gone_restarts_nothing() -> None:
    cluster = running(1)
    for suspend in (True, False):
        cluster.edit(suspend=suspend).settle()
    cluster.vanish().settle()
    assert cluster.indices == [0]
    assert not cluster.holds("Restarting")
    assert cluster.status["restartCount"] == 0


def test_a_job_can_begin_suspended() -> None:
    cluster = begun(job(suspend=True))
    assert cluster.holds("Created")
    assert cluster.holds("Suspended")
    assert "startTime" not in cluster.status
    assert not cluster.pods


def test_a_success_counts_though_the_job_is_suspended() -> None:
    cluster = running(1)
    cluster.end(0, 0).edit(suspend=True).settle()
    assert cluster.holds("Succeeded")


def test_a_job_that_somebody_else_manages_is_left_alone() -> None:
    cluster = Cluster(job(managedBy="kueue.x-k8s.io/multikueue"))
    plan = cluster.step()
    assert (plan.actions, plan.events, plan.status) == ((), (), {})
    assert "multikueue" in plan.reason
    assert begun(job(managedBy="elastic.pytorch.org/controller")).indices == [0, 1]
