"""Which pods are one group in a queue of Kueue, and which are set free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.controller.decide.groups import quota_groups
from elastic_runtime.controller.decide.job_types import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    CreatePod,
    DeletePod,
    PatchPod,
    PodView,
)
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster, begun

QUEUE = {"queue": "team", "priorityClass": "base", "surplusPriorityClass": "low"}


def queued(replicas: int = 3, low: int = 2, admitted: bool = True, **spec: Any) -> Cluster:
    """A job in a queue; its pods run if there is quota."""
    cluster = begun(job(replicas=replicas, minReplicas=low, scheduling=QUEUE, **spec))
    for _ in range(2 if admitted else 0):  # the minimum, and then the others
        cluster.admit().run().settle()
    return cluster


@pytest.fixture
def cluster() -> Cluster:
    """Three pods run: two are the minimum, and one is beyond it."""
    return queued()


def lose_quota(cluster: Cluster, left: int) -> None:
    """Others take quota, and the pods that had it have gone."""
    cluster.take_quota(left).settle()
    cluster.vanish().settle()


def meta(cluster: Cluster, index: int) -> Any:
    return cluster.manifests[cluster._at(index).name]["metadata"]


def labels(cluster: Cluster, index: int) -> Any:
    return meta(cluster, index)["labels"]


def group(cluster: Cluster, index: int) -> str:
    return cluster._at(index).group


def test_the_minimum_is_a_group_of_its_size(cluster: Cluster) -> None:
    assert group(cluster, 0) == group(cluster, 1) != ""
    assert group(cluster, 2) == ""
    assert meta(cluster, 0)["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
    classes = [labels(cluster, i)["kueue.x-k8s.io/priority-class"] for i in range(3)]
    assert classes == ["base", "base", "low"]
    assert {labels(cluster, i)["kueue.x-k8s.io/queue-name"] for i in range(3)} == {"team"}


def test_without_a_class_for_the_others_theirs_is_the_same() -> None:
    cluster = begun(job(replicas=2, scheduling={"queue": "team", "priorityClass": "base"}))
    cluster.admit().settle()
    assert labels(cluster, 1)["kueue.x-k8s.io/priority-class"] == "base"


def test_names_fit_into_labels() -> None:
    asked = job(replicas=1, scheduling=QUEUE)
    asked["metadata"]["name"] = "j" * 50
    cluster = begun(asked)
    assert len(group(cluster, 0)) == 63


def test_a_pod_tells_the_others_of_its_own_name_not_of_the_suffix(cluster: Cluster) -> None:
    manifest = cluster.manifests[cluster._at(0).name]
    environment = {one["name"]: one.get("value") for one in cluster.worker(0)["env"]}
    assert environment["ELASTIC_NODE_NAME"] == manifest["spec"]["hostname"] == "digits-worker-0"
    assert manifest["metadata"]["name"].startswith("digits-worker-0-")


def test_nothing_beyond_the_minimum_is_asked_for_before_that_has_quota() -> None:
    cluster = queued(admitted=False)
    assert cluster.indices == [0, 1]
    cluster.admit().settle()
    assert cluster.indices == [0, 1, 2]


@pytest.mark.parametrize("image", ["img:1", "img:2"], ids=["the same", "another image"])
def test_a_successor_joins_the_group_which_keeps_its_quota(cluster: Cluster, image: str) -> None:
    before = group(cluster, 1)
    cluster.change_template(image).settle()
    cluster.end(1, 137).settle()
    assert cluster.worker(1)["image"] == image
    assert group(cluster, 1) == before
    assert cluster._at(1).phase == PENDING


def test_a_group_of_one_is_kept_as_well() -> None:
    cluster = queued(1, 1)
    before = group(cluster, 0)
    cluster.delete(0).settle()
    cluster.vanish().settle()
    assert group(cluster, 0) == before
    assert cluster._at(0).gates


@pytest.mark.parametrize(
    "change", [{"resources": {"requests": {"cpu": "2"}}}, {"ports": [{"containerPort": 80}]}]
)
def test_a_pod_of_another_shape_is_alone_while_others_run(cluster: Cluster, change: Any) -> None:
    cluster.change_template(**change).settle()
    cluster.end(1, 137).settle()
    assert group(cluster, 1) == ""
    # What it took the place of has no successor in its group.
    assert [pod.index for pod in cluster.pods.values()] == [0, 2, 1]


def test_a_pod_that_its_group_cannot_take_says_what_to_do() -> None:
    cluster = queued(2)
    cluster.change_template(resources={"requests": {"cpu": "2"}}).settle()
    cluster.end(1, 137).settle()
    advice = "suspend the job, wait until it is, and resume it"
    cluster.expect("Running", False, "WaitingForQuota", advice)

    waits = queued(2, admitted=False)
    assert "suspend" not in waits.condition("Running")["message"]
    of_others = begun(job(replicas=2, minReplicas=2))  # by a label of the template, say
    of_others.change(0, gates=(quota_groups.GATE,)).settle()
    assert "suspend" not in of_others.condition("Running")["message"]


def test_a_minimum_that_leaves_one_after_the_other_comes_back_as_one() -> None:
    cluster = queued(2)
    before = group(cluster, 0)
    cluster.change_template(resources={"requests": {"cpu": "2"}}).settle()
    cluster.take_quota(0).settle()
    cluster.change(0, phase=FAILED, exit_code=5, ready=False).settle()
    cluster.vanish().settle()
    assert group(cluster, 0) == group(cluster, 1) not in ("", before)


def test_pods_beyond_a_minimum_that_has_lost_its_quota_give_theirs_back() -> None:
    cluster = queued(3)
    lose_quota(cluster, 0)
    cluster.vanish().settle()
    assert cluster.indices == [0, 1], "one that trains nothing keeps what the minimum waits for"
    cluster.admit().run().settle()
    assert cluster.indices == [0, 1, 2]


def test_who_has_outlived_a_fault_is_not_taken_while_its_peers_come_back() -> None:
    """It has the state of the training, and they have their quota."""
    cluster = queued(3)
    cluster.end(0, 137).end(1, 137).step()
    while not cluster._at(1).gates:
        cluster.step()
    for index in (0, 1):
        cluster.change(index, created_at=cluster.now)
    for _ in range(3):
        cluster.step()
    assert cluster._at(2).runs
    cluster.wait(11).settle()
    assert cluster.indices == [0, 1]


def test_enough_pods_beyond_a_minimum_that_has_lost_its_quota_train_on() -> None:
    cluster = queued(4)
    lose_quota(cluster, 0)
    assert cluster.indices == [0, 1, 2, 3]
    assert cluster.holds("Running")


def test_a_group_that_was_begun_is_completed() -> None:
    """By whichever controller comes after the one that was killed in between."""
    cluster = queued(admitted=False)
    before = group(cluster, 0)
    cluster.vanish(1).wait(60).settle()
    assert group(cluster, 0) == group(cluster, 1) == before


def test_who_waits_and_is_to_ask_for_less_forms_another_group() -> None:
    cluster = queued(admitted=False)
    before = group(cluster, 0)
    cluster.change_template(resources={"requests": {"cpu": "1"}}).settle()
    assert group(cluster, 0) == group(cluster, 1) != before
    assert len(cluster.pods) == 2, "the old ones are set free"


def test_a_suspended_job_sets_all_free(cluster: Cluster) -> None:
    cluster.edit(suspend=True).settle()
    assert len(cluster.pods) == 3, "they have their grace"
    cluster.vanish().settle()
    assert cluster.pods == {}
    assert cluster.holds("Suspended")


def test_pods_of_the_attempt_before_are_set_free() -> None:
    cluster = queued(backoffLimit=1)
    cluster.end(0, 1).end(1, 1)
    for _ in range(4):
        cluster.settle()
        cluster.vanish().wait(60)
    assert {pod.attempt for pod in cluster.pods.values()} == {1}
    assert group(cluster, 0) == group(cluster, 1)


@pytest.mark.parametrize("code", [0, 1])
def test_what_is_left_of_a_job_that_has_ended_keeps_no_quota(cluster: Cluster, code: int) -> None:
    cluster.end(0, code).settle()
    cluster.vanish()
    if not cluster.ended:
        cluster.change(1, phase=FAILED, exit_code=5, ready=False)
        cluster.change(2, phase=SUCCEEDED, exit_code=0, ready=False)
    cluster.settle()
    assert cluster.ended
    assert cluster.quota_is_kept() == []
    assert any(pod.final for pod in cluster.pods.values())


def test_who_waits_for_quota_is_told_and_is_no_restart(cluster: Cluster) -> None:
    lose_quota(cluster, 2)
    assert cluster.holds("Running")
    assert not cluster.holds("Restarting")
    text = "2 of 3 pods run; 1 pod waits for quota of the queue 'team' (kubectl get workloads)"
    assert cluster.condition("Running")["message"] == text
    assert cluster.status["replicaStatuses"]["Worker"]["gated"] == 1
    assert any("its quota was taken back (preempted)" in one.message for one in cluster.events)


def test_a_job_without_quota_says_which_workload_it_waits_for() -> None:
    cluster = queued(admitted=False)
    advice = f"kubectl describe workload {group(cluster, 0)}"
    cluster.expect("Running", False, "WaitingForQuota", advice)


def test_another_gate_is_named() -> None:
    cluster = begun(job(replicas=1))
    cluster.change(0, gates=("example.com/licence",)).settle()
    cluster.expect("Running", False, "Gated", "the scheduling gate example.com/licence")


def test_a_minimum_that_waits_again_is_a_restart(cluster: Cluster) -> None:
    lose_quota(cluster, 0)
    assert cluster.condition("Running")["reason"] == "WaitingForQuota"
    assert cluster.holds("Restarting")


def test_a_job_in_no_queue_says_nothing_to_kueue() -> None:
    cluster = begun(job(replicas=2))
    assert all("kueue" not in str(one) for one in cluster.manifests.values())


HELD = PodView("d-0", 0, "u1", group="g", held=True, deleting=True, phase=FAILED, node="n")


@pytest.mark.parametrize(
    ("pod", "is_left"),
    [
        (HELD, True),
        (replace(HELD, phase=SUCCEEDED), True),
        (replace(HELD, phase=PENDING, node=""), True),  # no kubelet will ever end it
        (replace(HELD, phase=PENDING), False),
        (replace(HELD, phase=RUNNING), False),
        (replace(HELD, deleting=False), False),
        (replace(HELD, held=False), False),
        (replace(HELD, group=""), True),  # a Kueue that is there frees it itself
        (replace(HELD, phase=RUNNING, forced=True), True),
    ],
)
def test_who_is_only_held(pod: PodView, is_left: bool) -> None:
    patches = quota_groups.free_all([pod])
    assert bool(patches) is is_left
    if patches:
        assert (patches[0].name, patches[0].uid) == ("d-0", "u1")
        assert patches[0].metadata == {
            "$deleteFromPrimitiveList/finalizers": ["kueue.x-k8s.io/managed"]
        }


def test_one_pod_says_for_its_group_that_it_has_ended() -> None:
    kept = [
        replace(HELD, name=f"{group}-{n}", uid=f"{group}{n}", group=group, deleting=False)
        for group in "ab"
        for n in range(2)
    ]
    assert [patch.name[0] for patch in quota_groups.end_groups(kept)] == ["a", "b"]
    told = [replace(kept[0], final=True), *kept[1:]]
    assert [patch.name[0] for patch in quota_groups.end_groups(told)] == ["b"]


def test_pods_are_created_under_names_that_never_were(cluster: Cluster) -> None:
    before = set(cluster.manifests)
    cluster.end(0, 137)
    for _ in range(3):
        plan = cluster.step()
        made = [one.manifest["metadata"] for one in plan.actions if isinstance(one, CreatePod)]
        assert not before & {meta["name"] for meta in made}
    assert len(cluster.manifests) == len(before) + 1


def test_pods_of_a_group_say_that_they_are_of_one_shape(cluster: Cluster) -> None:
    notes = [meta(cluster, index)["annotations"] for index in range(3)]
    roles = [each.get("kueue.x-k8s.io/role-hash") for each in notes]
    assert roles == [group(cluster, 0).split("-")[1]] * 2 + [None]


def test_whose_place_is_kept_comes_back_to_it_whoever_else_is_alone() -> None:
    cluster = queued(2)
    before = group(cluster, 1)
    cluster.change(0, deleting=True, phase=SUCCEEDED, exit_code=0, ready=False).settle()
    assert group(cluster, 0) == "", "Kueue counts the one that succeeded"
    cluster.end(1, 137).settle()
    assert group(cluster, 1) == before


def test_a_pod_that_was_deleted_by_force_is_gone_before_its_successor_comes() -> None:
    cluster = queued(2)
    plan = cluster.change(0, deleting=True, forced=True).decide()
    assert [one.uid for one in plan.actions if isinstance(one, PatchPod)] == [cluster._at(0).uid]
    assert not any(isinstance(one, CreatePod) for one in plan.actions), "it counts until then"


def test_no_pod_is_deleted_for_two_reasons_at_once() -> None:
    cluster = queued(3)
    lose_quota(cluster, 2)
    cluster.take_quota(0).settle()
    cluster.vanish().step()
    for index in (0, 1):
        cluster.change(index, created_at=cluster.now)
    cluster.change_template().step()  # has the template checked
    plan = cluster.wait(11).decide()
    doomed = [one.uid for one in plan.actions if isinstance(one, DeletePod)]
    assert cluster._at(2).uid in doomed
    assert len(doomed) == len(set(doomed)) == 3


def test_a_rollout_does_not_wait_for_who_waits_for_quota() -> None:
    cluster = queued(3, low=1, rollout="Rolling")
    lose_quota(cluster, 2)
    cluster.wait(40).change_template().settle()
    assert cluster._at(2).gates
    assert "Rolling" in cluster.reasons()
