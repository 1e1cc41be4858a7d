"""The job's own etcd: workers wait for it, its trouble is told first, and it leaves a node last."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.decision import decide
from elastic_runtime.controller.decide.job_types import (
    FAILED,
    PENDING,
    RUNNING,
    ApplyManifest,
    CreatePod,
    DeleteOwned,
    DeletePod,
)
from elastic_runtime.errors import EXIT_NOT_ENOUGH_NODES, EXIT_STORE_UNREACHABLE
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster, begun, running


def waiting(reason: str = "", **spec: object) -> Cluster:
    """A job whose etcd does not start."""
    cluster = begun(job(**spec), etcd_starts=False)
    cluster.change_etcd(waiting_reason=reason).settle()
    return cluster


@pytest.fixture
def cluster() -> Cluster:
    """A job whose two agents are in a round."""
    cluster = running(2)
    cluster.in_round(1, 2).settle()
    return cluster


# ---------------------------------------------------------------- workers wait for it


def test_no_worker_comes_before_etcd_is_ready() -> None:
    cluster = waiting()
    cluster.expect("Running", False, "WaitingForEtcd")
    assert cluster.pods == {}
    cluster.run().settle()
    assert cluster.indices == [0, 1]


def test_an_image_of_etcd_that_cannot_be_pulled_is_the_reason_and_costs_no_worker() -> None:
    cluster = waiting("ErrImagePull", etcd={"image": "nowhere/etcd"})
    for reason in ("ImagePullBackOff", "ErrImagePull"):
        cluster.wait(600)
        cluster.change_etcd(waiting_reason=reason).settle()
    why = "spec.etcd.image: the image 'nowhere/etcd' of the job's etcd"
    cluster.expect("Running", False, "ImagePullFailed", why)
    assert cluster.reasons("Warning") == ["ImagePullFailed"]
    assert (cluster.pods, cluster.status["restartCount"]) == ({}, 0)


def test_a_worker_that_is_lost_is_replaced_when_etcd_is_back(cluster: Cluster) -> None:
    cluster.change_etcd(ready=False)
    cluster.end(1, 137).settle()
    assert cluster.indices == [0]
    assert cluster.holds("Running")
    cluster.change_etcd(ready=True).settle()
    assert cluster.indices == [0, 1]


# ---------------------------------------------------------------- its trouble comes first


def test_trouble_of_etcd_comes_before_what_follows_from_it(cluster: Cluster) -> None:
    cluster.report = None
    cluster.end(0, EXIT_STORE_UNREACHABLE).settle()
    cluster.change_etcd(phase=PENDING, ready=False, waiting_reason="ImagePullBackOff").settle()
    cluster.expect("Running", False, "ImagePullFailed")
    assert set(cluster.reasons("Warning")) >= {"ImagePullFailed", "StoreUnreachable"}


def test_a_job_that_trains_runs_on_and_says_what_ails_its_etcd(cluster: Cluster) -> None:
    cluster.change_etcd(phase=PENDING, ready=False, waiting_reason="ImagePullBackOff").settle()
    cluster.expect("Running", True, "EnoughPods", "of the job's etcd cannot be pulled")
    cluster.change_etcd(ready=True, waiting_reason="").settle()
    assert cluster.condition("Running")["message"] == "2 of 2 pods run"


# ---------------------------------------------------------------- it is mended


def test_another_image_replaces_an_etcd_that_never_ran() -> None:
    cluster = waiting("ImagePullBackOff", etcd={"image": "nowhere/etcd"})
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


def test_an_etcd_that_ends_again_and_again_is_told() -> None:
    cluster = waiting("CrashLoopBackOff")
    why = "spec.etcd: digits-etcd cannot start"
    cluster.expect("Running", False, "CrashLoopBackOff", why)


def test_an_etcd_that_runs_is_not_replaced(cluster: Cluster) -> None:
    cluster.edit(etcd={"image": "good/etcd"})
    cluster.change_etcd(ready=False)  # for a moment
    assert not cluster.settle().actions


# ---------------------------------------------------------------- pods without a round


@pytest.mark.parametrize("code", [EXIT_NOT_ENOUGH_NODES, EXIT_STORE_UNREACHABLE])
def test_pods_that_wait_in_vain_for_a_round_wait_longer_and_longer(code: int) -> None:
    cluster, waits = running(2), []
    for _ in range(4):
        cluster.wait(600).end(1, code)  # --join-timeout
        waits.append(cluster.settle_until(lambda: not cluster.pods["digits-worker-1"].ended))
        cluster.run().settle()
    assert waits == [0, 1, 2, 4]


def test_a_round_between_two_ends_is_a_new_beginning(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        cluster.in_round(number, 2).settle()
        cluster.wait(600).end(1, EXIT_NOT_ENOUGH_NODES).settle()
        assert cluster.pods["digits-worker-1"].phase == PENDING
        cluster.run().settle()


# ---------------------------------------------------------------- drains


def placed(cluster: Cluster, etcd: str, *workers: str) -> None:
    """Pods are on nodes of these names."""
    cluster.change_etcd(node=etcd)
    for index, node in enumerate(workers):
        cluster.change(index, node=node)
    cluster.settle()


def test_etcd_cannot_be_drained_before_a_worker_on_its_node(cluster: Cluster) -> None:
    placed(cluster, "a", "b", "c")
    assert not cluster.guarded
    placed(cluster, "a", "b", "a")
    assert cluster.guarded
    cluster.delete(1).settle()  # evicted; it says goodbye
    assert cluster.guarded
    cluster.vanish().settle()
    assert not cluster.guarded


def test_a_worker_that_has_ended_guards_nothing() -> None:
    cluster = running(1)
    placed(cluster, "a", "a")
    plan = cluster.end(0, 137).decide()
    kept = [one.name for one in plan.actions if isinstance(one, DeleteOwned)]
    assert kept == ["digits-etcd"]


def test_pods_without_a_place_are_on_no_node_together() -> None:
    cluster = waiting()
    actions = cluster.decide().actions
    assert not cluster.guarded
    assert not any(isinstance(one, ApplyManifest) for one in actions)


@pytest.mark.parametrize(
    "leave", [lambda it: it.edit(suspend=True), lambda it: it.end(0, 0)], ids=["suspended", "ended"]
)
def test_nothing_of_the_guard_is_left_of_a_job_without_pods(leave: Any) -> None:
    cluster = running(1)
    placed(cluster, "a", "a")
    assert cluster.guarded
    leave(cluster).settle()
    cluster.vanish().settle()
    assert (cluster.guarded, cluster.etcd) == (False, None)


# ---------------------------------------------------------------- it ends, or never serves


def test_an_etcd_that_its_node_refuses_waits_longer_and_longer(cluster: Cluster) -> None:
    waits = []
    for _ in range(4):
        cluster.change_etcd(phase=FAILED, ready=False)
        waits.append(cluster.settle_until(lambda: cluster.etcd.phase != FAILED))
    assert waits == [0, 1, 2, 4]
    assert cluster.reasons("Warning").count("EtcdReplaced") == 4
    assert cluster.holds("Running")


def test_an_etcd_that_is_never_ready_is_told_and_can_be_mended() -> None:
    cluster = waiting()
    cluster.change_etcd(phase=RUNNING, unready_since=cluster.now).settle()
    assert cluster.condition("Running")["reason"] == "WaitingForEtcd"
    cluster.wake().settle()
    cluster.expect("Running", False, "EtcdNotReady", "spec.etcd: digits-etcd is not ready")
    before = cluster.etcd.uid
    cluster.edit(etcd={"template": {"spec": {"priorityClassName": "high"}}}).settle()
    assert cluster.etcd.uid != before


def test_an_etcd_that_does_not_go_is_told_of_a_job_that_trains(cluster: Cluster) -> None:
    cluster.change_etcd(deleting=True, unready_since=cluster.now - 90)
    cluster.end(1, 137).settle()
    cluster.expect("Running", True, "EnoughPods", "is being deleted, and does not go")


def test_what_guards_etcd_comes_after_the_pods(cluster: Cluster) -> None:
    placed(cluster, "a", "b", "c")
    cluster.vanish(1)
    cluster.change(0, node="a")
    kinds = [type(one) for one in cluster.decide().actions]
    assert kinds == [CreatePod, ApplyManifest]
