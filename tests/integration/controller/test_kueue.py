"""Jobs in a queue of Kueue: they shrink instead of being evicted, and leave nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.controller.conftest import NAMESPACE, replaced
from tests.kube.kinds import JOB, POD
from tests.kube.kueue import GATE, MANAGED, Kueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.controller.conftest import Scene
    from tests.kube.cluster import FakeCluster
    from tests.kube.kinds import Kind
    from tests.kube.store import Change

SCHEDULING = {"queue": "team", "priorityClass": "base", "surplusPriorityClass": "surplus"}


@pytest.fixture
def kueue(cluster: Scene) -> Iterator[Kueue]:
    """Kueue with quota for four pods."""
    running = Kueue(cluster.store, 4, {"surplus": 10, "base": 50, "other": 30})
    yield running
    running.stop()


def submit_queued(
    cluster: Scene, kueue: Kueue, states: str, *, quota: int = 0, least: int = 2, replicas: int = 0
) -> None:
    """Submits a job with a minimum to the queue, and waits until its pods do this.

    There is quota for all pods that run, unless some is given.
    """
    kueue.set_quota(quota or states.count("R"))
    cluster.submit(replicas=replicas or len(states), minReplicas=least, scheduling=SCHEDULING)
    wait_until(cluster, states)


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


def suspend(cluster: FakeCluster, is_on: bool = True) -> None:
    cluster.edit(JOB, "digits", {"spec": {"suspend": is_on}})


def fail_and_wait(cluster: FakeCluster, index: int, states: str) -> None:
    """A pod is killed; waits until it has gone, and the others do this."""
    before = pod_at(cluster, index)
    cluster.kubelet.finish(NAMESPACE, before, 137)
    cluster.wait_for(lambda: before not in cluster.pods("digits"), "the failed pod is gone")
    wait_until(cluster, states)


def message(cluster: FakeCluster, kind: str = "Running") -> str:
    return str(cluster.condition("digits", kind).get("message", ""))


def test_quota_takes_what_is_beyond_the_minimum_one_by_one_and_gives_it_back(
    cluster: Scene, kueue: Kueue
) -> None:
    submit_queued(cluster, kueue, "RRRR")
    assert len(kueue.workloads) == 3
    first = cluster.pods("digits")[pod_at(cluster, 0)]
    assert first["metadata"]["finalizers"] == [MANAGED]
    kept = [pod_at(cluster, index) for index in range(2)]

    cluster.kubelet.removes = False
    kueue.add_rival("a", 1, priority=30)

    def told() -> bool:
        said = [one["message"] for one in cluster.events("digits")]
        return any("its quota was taken back (Preempted to accommodate" in text for text in said)

    cluster.wait_for(told, "an event says why the pod leaves, while it does")
    cluster.kubelet.remove(NAMESPACE, "digits-worker-3")
    cluster.kubelet.removes = True
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


def test_a_pod_of_the_minimum_that_fails_or_is_deleted_keeps_its_place(
    cluster: Scene, kueue: Kueue
) -> None:
    submit_queued(cluster, kueue, "RR")
    kueue.add_rival("waits", 1, priority=30)
    group = next(iter(kueue.workloads))
    fail_and_wait(cluster, 1, "RR")
    assert not kueue.was_admitted("waits"), "its quota was kept for it"
    assert group in kueue.workloads

    # Its node is lost: nobody ever says that it has ended.
    cluster.kubelet.removes = False
    before = pod_at(cluster, 1)
    for grace in (30, 0):
        cluster.store.delete(POD, NAMESPACE, before, {"gracePeriodSeconds": grace})
    cluster.wait_for(lambda: before not in cluster.pods("digits"), "it is gone")
    wait_until(cluster, "RR")


def test_a_minimum_of_one_keeps_its_place_when_its_pod_is_deleted(
    cluster: Scene, kueue: Kueue
) -> None:
    submit_queued(cluster, kueue, "R", least=1)
    kueue.add_rival("waits", 1, priority=30)
    before = pod_at(cluster, 0)

    cluster.store.delete(POD, NAMESPACE, before)

    cluster.wait_for(lambda: before not in cluster.pods("digits"), "the pod is gone")
    wait_until(cluster, "R")
    assert not kueue.was_admitted("waits")


@pytest.mark.parametrize("minimum", [1, 2, 3])
def test_a_pod_that_leaves_as_if_it_were_done_is_replaced_once(
    cluster: Scene, kueue: Kueue, minimum: int
) -> None:
    """Kueue counts it as there, and would delete each one that comes into its place."""
    submit_queued(cluster, kueue, "R" * minimum, least=minimum)
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
    suspend(cluster)
    nothing_is_left(cluster, kueue)


def test_a_pod_that_admission_makes_another_one_keeps_its_place(
    cluster: Scene, kueue: Kueue
) -> None:
    """A new version of a sidecar's injector, or a default of the namespace."""
    submit_queued(cluster, kueue, "RR")

    def inject(kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
        if kind != POD:
            return item
        proxy = {"name": "proxy", "image": "proxy", "resources": {"requests": {"cpu": "10m"}}}
        containers = [*item["spec"]["containers"], proxy]
        return {**item, "spec": {**item["spec"], "containers": containers}}

    cluster.store.webhooks.insert(0, inject)
    fail_and_wait(cluster, 1, "RR")


def test_pods_are_not_held_for_ever_by_a_kueue_that_was_removed(
    cluster: Scene, kueue: Kueue
) -> None:
    submit_queued(cluster, kueue, "RRRR")
    kueue.stop()
    cluster.store.webhooks.clear()

    before = pod_at(cluster, 3)
    with replaced(cluster, before):
        cluster.store.delete(POD, NAMESPACE, before)
    wait_until(cluster, "RRRR")
    cluster.store.delete(JOB, NAMESPACE, "digits")
    cluster.wait_for(lambda: not cluster.pods("digits"), "all pods are gone")


@pytest.mark.parametrize(("states", "cost"), [("RR", 4), ("RRRR", 3)])
def test_the_minimum_is_preempted_as_a_whole_and_comes_back(
    cluster: Scene, kueue: Kueue, states: str, cost: int
) -> None:
    """If the rival needs the minimum and one other of four, Kueue leaves the last one."""
    submit_queued(cluster, kueue, states, quota=4)

    kueue.add_rival("big", cost, priority=99)
    wait_until(cluster, "gg")
    cluster.wait_for(lambda: len(cluster.pods("digits")) == 2, "no old pod is left")
    cluster.await_condition("digits", "Running", "WaitingForQuota")
    cluster.wait_for(lambda: kueue.is_admitted("big"), "the rival has what it needs")

    kueue.remove_rival("big")
    wait_until(cluster, states)


@pytest.mark.parametrize("states", ["RRRR", "gg"], ids=["trains", "waits"])
def test_a_job_that_is_suspended_or_deleted_keeps_no_quota(
    cluster: Scene, kueue: Kueue, states: str
) -> None:
    submit_queued(cluster, kueue, states, quota=states.count("R") or 1, replicas=4)

    suspend(cluster)
    nothing_is_left(cluster, kueue)
    cluster.await_condition("digits", "Suspended")
    suspend(cluster, False)
    wait_until(cluster, states)

    cluster.store.delete(JOB, NAMESPACE, "digits")
    nothing_is_left(cluster, kueue)


def test_what_was_deleted_while_no_controller_was_there_is_freed_later(
    cluster: Scene, kueue: Kueue
) -> None:
    kueue.set_quota(1)
    first = cluster.start()
    cluster.submit(replicas=2, minReplicas=2, scheduling=SCHEDULING)
    wait_until(cluster, "gg")
    first.end()
    cluster.store.delete(JOB, NAMESPACE, "digits")
    assert len(cluster.pods("digits")) == 2, "Kueue holds them"

    cluster.start()

    nothing_is_left(cluster, kueue)


@pytest.mark.parametrize(("ends", "condition"), [((1,), "Failed"), ((0, 0, 0), "Succeeded")])
def test_a_job_that_has_ended_gives_its_quota_back_and_keeps_its_logs(
    cluster: Scene, kueue: Kueue, ends: tuple[int, ...], condition: str
) -> None:
    submit_queued(cluster, kueue, "RRR", quota=4)
    kueue.add_rival("waits", 4, priority=1)

    for index, code in enumerate(ends):
        cluster.kubelet.finish(NAMESPACE, pod_at(cluster, index), code)

    cluster.await_condition("digits", condition)
    cluster.wait_for(lambda: kueue.is_admitted("waits"), "the quota is free")
    assert condition in {pod["status"]["phase"] for pod in cluster.pods("digits").values()}
