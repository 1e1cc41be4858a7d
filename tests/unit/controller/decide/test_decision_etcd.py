"""The job's own etcd: workers wait for it, its trouble is told first, and it leaves a node last."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.controller.decide.decision import decide
from elastic_runtime.controller.decide.job_types import (
    FAILED,
    PENDING,
    RUNNING,
    AgentReport,
    ApplyManifest,
    CreatePod,
    DeleteOwned,
    DeletePod,
)
from elastic_runtime.errors import EXIT_NOT_ENOUGH_NODES, EXIT_STORE_UNREACHABLE
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster, running


def waiting(reason: str = "", **spec: object) -> Cluster:
    """A job whose etcd does not start."""
    cluster = Cluster(job(**spec), etcd_starts=False)
    cluster.settle()
    assert cluster.etcd is not None
    cluster.etcd = replace(cluster.etcd, waiting_reason=reason)
    cluster.settle()
    return cluster


def trains(cluster: Cluster, number: int = 1) -> None:
    """The agents are in a round."""
    cluster.report = AgentReport(round=number, world=2, nodes=2, ready=True)
    cluster.settle()


# ---------------------------------------------------------------- workers wait for it


def test_no_worker_comes_before_etcd_is_ready() -> None:
    cluster = waiting()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "WaitingForEtcd")
    assert cluster.pods == {}
    cluster.run()
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_an_image_of_etcd_that_cannot_be_pulled_is_the_reason_and_costs_no_worker() -> None:
    cluster = waiting("ErrImagePull", etcd={"image": "nowhere/etcd"})
    for reason in ("ImagePullBackOff", "ErrImagePull"):
        cluster.now += 600
        assert cluster.etcd is not None
        cluster.etcd = replace(cluster.etcd, waiting_reason=reason)
        cluster.settle()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "ImagePullFailed")
    assert "spec.etcd.image: the image 'nowhere/etcd' of the job's etcd" in told["message"]
    assert cluster.reasons("Warning") == ["ImagePullFailed"]
    assert (cluster.pods, cluster.status["restartCount"]) == ({}, 0)


def test_a_worker_that_is_lost_is_replaced_when_etcd_is_back() -> None:
    cluster = running(2)
    trains(cluster)
    assert cluster.etcd is not None
    cluster.etcd = replace(cluster.etcd, ready=False)
    cluster.end(1, 137)
    cluster.settle()
    assert cluster.indices == [0]
    assert cluster.holds("Running")
    cluster.etcd = replace(cluster.etcd, ready=True)
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_a_store_of_the_users_is_not_waited_for() -> None:
    cluster = Cluster(job(rdzvEndpoint="etcd:2379"))
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert cluster.etcd is None


# ---------------------------------------------------------------- its trouble comes first


def test_trouble_of_etcd_comes_before_what_follows_from_it() -> None:
    cluster = running(2)
    cluster.report = None
    cluster.end(0, EXIT_STORE_UNREACHABLE)
    cluster.settle()
    assert cluster.etcd is not None
    cluster.etcd = replace(
        cluster.etcd, phase=PENDING, ready=False, waiting_reason="ImagePullBackOff"
    )
    cluster.settle()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "ImagePullFailed")
    assert set(cluster.reasons("Warning")) >= {"ImagePullFailed", "StoreUnreachable"}


def test_a_job_that_trains_runs_on_and_says_what_ails_its_etcd() -> None:
    cluster = running(2)
    trains(cluster)
    assert cluster.etcd is not None
    cluster.etcd = replace(
        cluster.etcd, phase=PENDING, ready=False, waiting_reason="ImagePullBackOff"
    )
    cluster.settle()
    told = cluster.condition("Running")
    assert told["status"] == "True"
    assert "of the job's etcd cannot be pulled" in told["message"]
    cluster.etcd = replace(cluster.etcd, ready=True, waiting_reason="")
    cluster.settle()
    assert cluster.condition("Running")["message"] == "2 of 2 pods run"


# ---------------------------------------------------------------- it is mended


def test_another_image_replaces_an_etcd_that_never_ran() -> None:
    cluster = waiting("ImagePullBackOff", etcd={"image": "nowhere/etcd"})
    assert cluster.etcd is not None
    before = cluster.etcd.uid
    cluster.edit(etcd={"image": "good/etcd"})
    [deleted] = [one for one in cluster.decide().actions if isinstance(one, DeletePod)]
    assert (deleted.name, deleted.uid, deleted.grace) == ("digits-etcd", before, 0)
    cluster.settle()
    assert cluster.etcd.image == "good/etcd"
    assert "nowhere" not in cluster.condition("Running")["message"]
    assert "good" not in " ".join(event.message for event in cluster.events)


def test_another_default_of_the_controller_does_too() -> None:
    cluster = waiting("ImagePullBackOff")
    plan = decide(cluster.job, cluster.observed(), cluster.now, "good/etcd")
    assert [one.name for one in plan.actions if isinstance(one, DeletePod)] == ["digits-etcd"]
    told = next(one for one in plan.status["conditions"] if one["type"] == "Running")
    assert "good/etcd" not in told["message"], "it is not the new one that cannot be pulled"


def test_an_etcd_that_runs_is_not_replaced() -> None:
    cluster = running(2)
    trains(cluster)
    assert cluster.etcd is not None
    cluster.edit(etcd={"image": "good/etcd"})
    cluster.etcd = replace(cluster.etcd, ready=False)  # for a moment
    assert not cluster.settle().actions


# ---------------------------------------------------------------- pods without a round


def test_pods_that_wait_in_vain_for_a_round_wait_longer_and_longer() -> None:
    for code in (EXIT_NOT_ENOUGH_NODES, EXIT_STORE_UNREACHABLE):
        cluster = running(2)
        waits = []
        for _ in range(4):
            cluster.now += 600  # --join-timeout
            cluster.end(1, code)
            ended, plan = cluster.now, cluster.settle()
            while cluster.pods["digits-worker-1"].ended:
                cluster.now = plan.wake_at
                plan = cluster.settle()
            waits.append(cluster.now - ended)
            cluster.run()
            cluster.settle()
        assert waits == [0, 1, 2, 4]


def test_a_round_between_two_ends_is_a_new_beginning() -> None:
    cluster = running(2)
    for number in (1, 2, 3):
        trains(cluster, number)
        cluster.now += 600
        cluster.end(1, EXIT_NOT_ENOUGH_NODES)
        cluster.settle()
        assert cluster.pods["digits-worker-1"].phase == PENDING
        cluster.run()
        cluster.settle()


# ---------------------------------------------------------------- drains


def placed(cluster: Cluster, etcd: str, *workers: str) -> None:
    """Pods are on nodes of these names."""
    assert cluster.etcd is not None
    cluster.etcd = replace(cluster.etcd, node=etcd)
    for index, node in enumerate(workers):
        cluster.change(index, node=node)
    cluster.settle()


def test_etcd_cannot_be_drained_before_a_worker_on_its_node() -> None:
    cluster = running(2)
    placed(cluster, "a", "b", "c")
    assert not cluster.guarded
    placed(cluster, "a", "b", "a")
    assert cluster.guarded
    cluster.delete(1)  # evicted; it says goodbye
    cluster.settle()
    assert cluster.guarded
    cluster.vanish()
    cluster.settle()
    assert not cluster.guarded


def test_a_worker_that_has_ended_guards_nothing() -> None:
    cluster = running(1)
    placed(cluster, "a", "a")
    cluster.end(0, 137)
    plan = cluster.decide()
    kept = [one.name for one in plan.actions if isinstance(one, DeleteOwned)]
    assert kept == ["digits-etcd"]


def test_pods_without_a_place_are_on_no_node_together() -> None:
    cluster = waiting()
    actions = cluster.decide().actions
    assert not cluster.guarded
    assert not any(isinstance(one, ApplyManifest) for one in actions)


def test_nothing_of_the_guard_is_left_when_the_job_is_suspended_or_ends() -> None:
    for way_out in ("suspend", "end"):
        cluster = running(1)
        placed(cluster, "a", "a")
        assert cluster.guarded
        if way_out == "suspend":
            cluster.edit(suspend=True)
        else:
            cluster.end(0, 0)
        cluster.settle()
        cluster.vanish()
        cluster.settle()
        assert (cluster.guarded, cluster.etcd) == (False, None)


# ---------------------------------------------------------------- it ends, or never serves


def test_an_etcd_that_its_node_refuses_waits_longer_and_longer() -> None:
    cluster = running(2)
    trains(cluster)
    waits = []
    for _ in range(4):
        assert cluster.etcd is not None
        before = cluster.etcd.uid
        cluster.etcd = replace(cluster.etcd, phase=FAILED, ready=False)
        ended, plan = cluster.now, cluster.settle()
        while cluster.etcd.uid == before:
            cluster.now = plan.wake_at
            plan = cluster.settle()
        waits.append(cluster.now - ended)
    assert waits == [0, 1, 2, 4]
    assert cluster.reasons("Warning").count("EtcdReplaced") == 4
    assert cluster.holds("Running")


def test_an_etcd_that_is_never_ready_is_told_and_can_be_mended() -> None:
    cluster = waiting()
    assert cluster.etcd is not None
    cluster.etcd = replace(cluster.etcd, phase=RUNNING, unready_since=cluster.now)
    plan = cluster.settle()
    assert cluster.condition("Running")["reason"] == "WaitingForEtcd"
    cluster.now = plan.wake_at
    cluster.settle()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "EtcdNotReady")
    assert "spec.etcd: digits-etcd is not ready" in told["message"]
    before = cluster.etcd.uid
    cluster.edit(etcd={"template": {"spec": {"priorityClassName": "high"}}})
    cluster.settle()
    assert cluster.etcd.uid != before


def test_an_etcd_that_does_not_go_is_told_of_a_job_that_trains() -> None:
    cluster = running(2)
    trains(cluster)
    assert cluster.etcd is not None
    cluster.etcd = replace(cluster.etcd, deleting=True, unready_since=cluster.now - 90)
    cluster.end(1, 137)
    cluster.settle()
    told = cluster.condition("Running")
    assert told["status"] == "True"
    assert "digits-etcd is being deleted, and does not go" in told["message"]


def test_what_guards_etcd_comes_after_the_pods() -> None:
    cluster = running(2)
    placed(cluster, "a", "b", "c")
    cluster.vanish(1)
    cluster.change(0, node="a")
    kinds = [type(one) for one in cluster.decide().actions]
    assert kinds == [CreatePod, ApplyManifest]
