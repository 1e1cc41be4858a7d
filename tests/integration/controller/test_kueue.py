"""Jobs in a queue of Kueue: they shrink instead of being evicted, and leave nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.controller.conftest import NAMESPACE
from tests.kube.kinds import JOB, POD
from tests.kube.kueue import GATE, MANAGED, Kueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.controller.conftest import Running
    from tests.kube.cluster import FakeCluster
    from tests.kube.kinds import Kind
    from tests.kube.store import Change

    Submit = Callable[..., dict[str, Any]]

_GROUP = "kueue.x-k8s.io/pod-group-name"
SCHEDULING = {"queue": "team", "priorityClass": "base", "surplusPriorityClass": "surplus"}


@pytest.fixture
def kueue(cluster: FakeCluster) -> Iterator[Kueue]:
    """Kueue with quota for four pods."""
    running = Kueue(cluster.store, 4, {"surplus": 10, "base": 50, "other": 30})
    yield running
    running.stop()


@pytest.fixture
def queued(kueue: Kueue, controller: Running, submit: Submit) -> Callable[..., dict[str, Any]]:
    """Submits a job with a minimum of two to the queue."""

    def queued(replicas: int = 4, minReplicas: int = 2, **spec: Any) -> dict[str, Any]:
        return submit(replicas=replicas, minReplicas=minReplicas, scheduling=SCHEDULING, **spec)

    return queued


def shown(cluster: FakeCluster) -> dict[int, str]:
    """What the pods that are not leaving do, by index."""
    found: dict[int, str] = {}
    for pod in cluster.pods("digits").values():
        if not pod["metadata"].get("deletionTimestamp"):
            gated = any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())
            index = int(pod["metadata"]["labels"]["replica-index"])
            found[index] = "gated" if gated else pod["status"]["phase"]
    return found


def wait_until(cluster: FakeCluster, states: str) -> None:
    """Waits until the pods, by index, do this: R runs, g is gated."""
    words = {"R": "Running", "g": "gated", "S": "Succeeded"}
    wanted = {index: words[letter] for index, letter in enumerate(states)}
    cluster.wait_for(lambda: shown(cluster) == wanted, f"pods are {states}")


def pod_at(cluster: FakeCluster, index: int) -> str:
    """The name of the pod with an index that is not leaving."""
    (name,) = [
        name
        for name, pod in cluster.pods("digits").items()
        if pod["metadata"]["labels"]["replica-index"] == str(index)
        and not pod["metadata"].get("deletionTimestamp")
    ]
    return name


def nothing_is_left(cluster: FakeCluster, kueue: Kueue) -> None:
    """Waits until no pod of the job is there, and no quota is kept for any."""
    cluster.wait_for(
        lambda: not cluster.pods("digits") and not kueue.workloads, "all pods are gone"
    )


def begin_with(quota: int, cluster: FakeCluster, kueue: Kueue, queued: Submit) -> None:
    """A job of four that trains, or whose minimum waits for quota."""
    kueue.set_quota(quota)
    queued()
    wait_until(cluster, "RRRR" if quota == 4 else "gg")


def ask_for_something_else(cluster: FakeCluster) -> None:
    """A user changes what each pod asks for."""
    resources = {"requests": {"cpu": "500m"}}
    container = {"name": "elasticjob-worker", "image": "train", "resources": resources}
    worker = {"template": {"spec": {"containers": [container]}}}
    cluster.edit(JOB, "digits", {"spec": {"replicaSpecs": {"Worker": worker}}})


def message(cluster: FakeCluster, kind: str = "Running") -> str:
    return str(cluster.condition("digits", kind).get("message", ""))


def test_the_minimum_is_one_group_and_each_further_pod_is_alone(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued()
    wait_until(cluster, "RRRR")

    pods = {index: cluster.pods("digits")[pod_at(cluster, index)] for index in range(4)}
    groups = [pods[index]["metadata"]["labels"].get(_GROUP) for index in range(4)]
    assert groups[0] == groups[1] != None  # noqa: E711
    assert groups[2:] == [None, None]
    assert len(kueue.workloads) == 3
    classes = [pods[i]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] for i in range(4)]
    assert classes == ["base", "base", "surplus", "surplus"]
    assert pods[0]["metadata"]["finalizers"] == [MANAGED]


def test_quota_takes_surplus_pods_one_by_one_and_gives_them_back(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued()
    wait_until(cluster, "RRRR")
    kept = [pod_at(cluster, index) for index in range(2)]

    kueue.add_rival("a", 1, priority=30)
    wait_until(cluster, "RRRg")
    cluster.wait_for(
        lambda: "1 pod waits for quota of the queue 'team'" in message(cluster), "it is told"
    )
    assert cluster.condition("digits", "Running")["status"] == "True"
    cluster.wait_for(
        lambda: cluster.condition("digits", "Restarting").get("status") != "True",
        "a pod that waits for quota is no restart",
    )
    kueue.add_rival("b", 1, priority=30)
    wait_until(cluster, "RRgg")
    assert [pod_at(cluster, index) for index in range(2)] == kept, "the minimum trains on"
    assert kueue.is_admitted("a") and kueue.is_admitted("b")

    kueue.remove_rival("a")
    cluster.wait_for(
        lambda: sorted(shown(cluster).values()) == ["Running"] * 3 + ["gated"], "one is back"
    )
    kueue.remove_rival("b")
    wait_until(cluster, "RRRR")


def test_a_pod_whose_quota_is_taken_says_so_while_it_leaves(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued(replicas=3)
    wait_until(cluster, "RRR")
    cluster.kubelet.removes = False

    kueue.add_rival("big", 2, priority=30)

    def told() -> bool:
        said = [one["message"] for one in cluster.events("digits")]
        return any("its quota was taken back (Preempted to accommodate" in text for text in said)

    cluster.wait_for(told, "an event says why the pod leaves")
    cluster.kubelet.remove(NAMESPACE, "digits-worker-2")
    wait_until(cluster, "RRg")


def test_a_job_without_quota_says_what_it_waits_for(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    kueue.set_quota(1)
    queued()
    wait_until(cluster, "gg")  # no pod beyond the minimum takes what that needs
    cluster.wait_for(
        lambda: cluster.condition("digits", "Running").get("reason") == "WaitingForQuota",
        "the condition says it",
    )
    group = cluster.wait_for(lambda: next(iter(kueue.workloads), None), "Kueue has seen it")
    assert f"2 pods wait for quota of the queue 'team' (kubectl describe workload {group})" in (
        message(cluster)
    )
    cluster.wait_for(
        lambda: cluster.job("digits")["status"]["replicaStatuses"]["Worker"].get("gated") == 2,
        "the status counts them",
    )

    kueue.set_quota(3)
    wait_until(cluster, "RRRg")


def test_a_pod_of_the_minimum_that_fails_keeps_its_place(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    kueue.set_quota(2)
    queued(replicas=2)
    wait_until(cluster, "RR")
    kueue.add_rival("waits", 1, priority=30)
    group = next(iter(kueue.workloads))
    before = pod_at(cluster, 1)

    cluster.kubelet.finish(NAMESPACE, before, 137)

    cluster.wait_for(lambda: before not in cluster.pods("digits"), "the failed pod is gone")
    wait_until(cluster, "RR")
    assert not kueue.was_admitted("waits"), "its quota was kept for it"
    assert group in kueue.workloads


def test_a_minimum_of_one_keeps_its_place_when_its_pod_is_deleted(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    kueue.set_quota(1)
    queued(replicas=1, minReplicas=1)
    wait_until(cluster, "R")
    kueue.add_rival("waits", 1, priority=30)
    before = pod_at(cluster, 0)

    cluster.store.delete(POD, NAMESPACE, before)

    cluster.wait_for(lambda: before not in cluster.pods("digits"), "the pod is gone")
    wait_until(cluster, "R")
    assert not kueue.was_admitted("waits")


@pytest.mark.parametrize("minimum", [1, 2, 3])
def test_a_pod_that_leaves_as_if_it_were_done_is_replaced_once(
    cluster: FakeCluster, kueue: Kueue, queued: Submit, minimum: int
) -> None:
    """Kueue counts it as there, and would delete each one that comes into its place."""
    kueue.set_quota(minimum)
    queued(replicas=minimum, minReplicas=minimum)
    wait_until(cluster, "R" * minimum)
    made: list[str] = []

    def note(change: Change) -> None:
        if change.kind == POD and change.type == "ADDED":
            made.append(change.item["metadata"]["name"])

    cluster.store.listeners.append(note)
    cluster.kubelet.removes = False
    before = pod_at(cluster, minimum - 1)
    cluster.store.delete(POD, NAMESPACE, before)
    cluster.kubelet.remove(NAMESPACE, before, code=0)
    cluster.kubelet.removes = True

    wait_until(cluster, "R" * minimum)
    assert len(made) == 1
    for index in range(minimum):  # Kueue still looks after all of them
        cluster.kubelet.finish(NAMESPACE, pod_at(cluster, index), 137)
        wait_until(cluster, "R" * minimum)
    cluster.edit(JOB, "digits", {"spec": {"suspend": True}})
    nothing_is_left(cluster, kueue)


def test_a_pod_that_is_deleted_by_force_makes_room_for_the_next_one(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    """Its node is lost: nobody ever says that it has ended."""
    kueue.set_quota(2)
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.kubelet.removes = False
    before = pod_at(cluster, 1)

    cluster.store.delete(POD, NAMESPACE, before)
    cluster.store.delete(POD, NAMESPACE, before, {"gracePeriodSeconds": 0})

    cluster.wait_for(lambda: before not in cluster.pods("digits"), "it is gone")
    wait_until(cluster, "RR")


def test_a_pod_that_admission_makes_another_one_keeps_its_place(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    """A new version of a sidecar's injector, or a default of the namespace."""
    kueue.set_quota(2)
    queued(replicas=2)
    wait_until(cluster, "RR")

    def inject(kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
        if kind != POD:
            return item
        proxy = {"name": "proxy", "image": "proxy", "resources": {"requests": {"cpu": "10m"}}}
        containers = [*item["spec"]["containers"], proxy]
        return {**item, "spec": {**item["spec"], "containers": containers}}

    cluster.store.webhooks.insert(0, inject)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 1), 137)
    wait_until(cluster, "RR")


def test_pods_are_not_held_for_ever_by_a_kueue_that_was_removed(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued()
    wait_until(cluster, "RRRR")
    kueue.stop()
    cluster.store.webhooks.clear()

    before = pod_at(cluster, 3)
    uid = cluster.pods("digits")[before]["metadata"]["uid"]
    cluster.store.delete(POD, NAMESPACE, before)
    cluster.wait_for(
        lambda: cluster.pods("digits").get(before, {}).get("metadata", {}).get("uid") != uid,
        "its object is gone",
    )
    wait_until(cluster, "RRRR")
    cluster.store.delete(JOB, NAMESPACE, "digits")
    cluster.wait_for(lambda: not cluster.pods("digits"), "all pods are gone")


def test_the_minimum_is_preempted_as_a_whole_and_comes_back(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued(replicas=2)
    wait_until(cluster, "RR")

    kueue.add_rival("big", 4, priority=99)
    wait_until(cluster, "gg")
    cluster.wait_for(lambda: len(cluster.pods("digits")) == 2, "no old pod is left")
    cluster.wait_for(
        lambda: cluster.condition("digits", "Running").get("reason") == "WaitingForQuota",
        "the condition says it",
    )
    kueue.remove_rival("big")
    wait_until(cluster, "RR")


def test_no_pod_stays_behind_when_the_minimum_is_taken(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued()
    wait_until(cluster, "RRRR")

    kueue.add_rival("big", 3, priority=99)  # the minimum and one other; Kueue leaves the last one
    wait_until(cluster, "gg")
    cluster.wait_for(lambda: kueue.is_admitted("big"), "the rival has what it needs")

    kueue.remove_rival("big")
    wait_until(cluster, "RRRR")


@pytest.mark.parametrize("quota", [4, 1], ids=["trains", "waits"])
def test_a_suspended_job_keeps_no_quota_and_comes_back(
    cluster: FakeCluster, kueue: Kueue, queued: Submit, quota: int
) -> None:
    begin_with(quota, cluster, kueue, queued)

    cluster.edit(JOB, "digits", {"spec": {"suspend": True}})
    nothing_is_left(cluster, kueue)
    cluster.wait_for(
        lambda: cluster.condition("digits", "Suspended").get("status") == "True", "it says so"
    )
    kueue.set_quota(4)
    cluster.edit(JOB, "digits", {"spec": {"suspend": False}})
    wait_until(cluster, "RRRR")


@pytest.mark.parametrize("quota", [4, 1], ids=["trains", "waits"])
def test_a_deleted_job_leaves_nothing_behind(
    cluster: FakeCluster, kueue: Kueue, queued: Submit, quota: int
) -> None:
    begin_with(quota, cluster, kueue, queued)

    cluster.store.delete(JOB, NAMESPACE, "digits")

    nothing_is_left(cluster, kueue)


def test_what_was_deleted_while_no_controller_was_there_is_freed_later(
    cluster: FakeCluster,
    kueue: Kueue,
    start: Callable[..., Running],
    submit: Submit,
) -> None:
    kueue.set_quota(1)
    first = start()
    submit(replicas=2, minReplicas=2, scheduling=SCHEDULING)
    wait_until(cluster, "gg")
    first.end()
    cluster.store.delete(JOB, NAMESPACE, "digits")
    assert len(cluster.pods("digits")) == 2, "Kueue holds them"

    start()

    nothing_is_left(cluster, kueue)


def test_a_job_that_has_failed_gives_its_quota_back_and_keeps_its_logs(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued(replicas=2)
    wait_until(cluster, "RR")
    kueue.add_rival("waits", 4, priority=1)

    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 0), 1)

    cluster.wait_for(
        lambda: cluster.condition("digits", "Failed").get("status") == "True", "it has failed"
    )
    cluster.wait_for(lambda: kueue.is_admitted("waits"), "the quota is free")
    assert any(pod["status"]["phase"] == "Failed" for pod in cluster.pods("digits").values())


def test_a_job_that_succeeds_gives_its_quota_back(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    queued(replicas=3)
    wait_until(cluster, "RRR")
    kueue.add_rival("waits", 4, priority=1)

    for index in range(3):
        cluster.kubelet.finish(NAMESPACE, pod_at(cluster, index), 0)

    cluster.wait_for(
        lambda: cluster.condition("digits", "Succeeded").get("status") == "True", "it is done"
    )
    cluster.wait_for(lambda: kueue.is_admitted("waits"), "the quota is free")


def test_a_waiting_job_that_asks_for_less_is_a_new_group(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    kueue.set_quota(1)
    queued()
    wait_until(cluster, "gg")
    before = cluster.wait_for(lambda: next(iter(kueue.workloads), None), "Kueue has seen it")

    ask_for_something_else(cluster)
    cluster.wait_for(
        lambda: kueue.workloads and before not in kueue.workloads, "Kueue sees other pods"
    )
    kueue.set_quota(4)
    wait_until(cluster, "RRRR")


def test_a_pod_of_another_shape_joins_no_group(
    cluster: FakeCluster, kueue: Kueue, queued: Submit
) -> None:
    """It would wait for ever there; alone it gets its own quota."""
    queued(replicas=2)
    wait_until(cluster, "RR")
    ask_for_something_else(cluster)
    before = pod_at(cluster, 1)

    cluster.kubelet.finish(NAMESPACE, before, 137)

    cluster.wait_for(lambda: before not in cluster.pods("digits"), "the failed pod is gone")
    wait_until(cluster, "RR")
    assert _GROUP not in cluster.pods("digits")[pod_at(cluster, 1)]["metadata"]["labels"]
