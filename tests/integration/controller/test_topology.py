"""Pods are told where in the network their nodes are: by whom, how often, and if nobody may."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.controller.conftest import (
    NAMESPACE,
    SHORT_LEASE,
    assert_idle,
    wait_until_running,
)
from tests.kube.disruptions import NODE, add_nodes
from tests.kube.kinds import POD

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene
    from tests.kube.cluster import FakeCluster
    from tests.kube.server import Request

_LABELS = "--topology-labels=zone,block,rack"
_NOTE = "elastic.pytorch.org/topology"


def told(cluster: FakeCluster, name: str = "digits") -> dict[str, str]:
    """What the pods of a job were told, by name; "" if nothing yet."""
    return {
        pod: item["metadata"]["annotations"].get(_NOTE, "is not to be told")
        for pod, item in cluster.pods(name).items()
    }


def wait_until_told(cluster: FakeCluster, wanted: dict[str, int], name: str = "digits") -> None:
    """Returns when so many pods were told this and that."""
    cluster.wait_for(
        lambda: Counter(told(cluster, name).values()) == wanted, f"the pods are told {wanted}"
    )


def reads_nodes(request: Request) -> bool:
    return request.kind == NODE


def patches_pods(request: Request) -> bool:
    return request.kind == POD and request.verb == "patch"


def warnings(cluster: FakeCluster) -> list[str]:
    found = [one for one in cluster.events("digits") if one["reason"] == "TopologyUnknown"]
    return [one["message"] for one in found if one["type"] == "Warning"]


def test_pods_are_told_the_labels_of_their_nodes_and_nothing_is_asked_when_they_are(
    cluster: Scene,
) -> None:
    add_nodes(cluster.store, "n1", labels={"zone": "z1", "block": "b1", "rack": "r1"})
    add_nodes(cluster.store, "n2", labels={"zone": "z1", "rack": "r2"})
    cluster.start(_LABELS, *SHORT_LEASE)
    cluster.submit(replicas=4)
    wait_until_running(cluster, "digits", 4)
    wait_until_told(cluster, {"z1/b1/r1": 2, "z1": 2})
    for name, value in told(cluster).items():
        node = cluster.pods()[name]["spec"]["nodeName"]
        assert value == {"n1": "z1/b1/r1", "n2": "z1"}[node]
    assert cluster.counts()["get nodes"] == 2
    assert cluster.counts()["patch pods"] == 4

    assert_idle(cluster)

    cluster.kubelet.lose(NAMESPACE, "digits-worker-3")
    cluster.wait_for(lambda: cluster.counts()["patch pods"] == 5, "its successor is told")
    assert cluster.counts()["get nodes"] == 2


def test_a_job_has_its_own_labels_or_none(cluster: Scene) -> None:
    cluster.start(_LABELS)
    cluster.submit()
    wait_until_told(cluster, {"-": 2})  # there is no such node
    wait_until_running(cluster, "digits", 2)
    assert warnings(cluster) == []
    add_nodes(cluster.store, "n1", labels={"zone": "z1", "block": "b1", "rack": "r1"})
    cluster.submit("own", replicas=1, topology={"nodeLabels": ["rack"]})
    wait_until_told(cluster, {"r1": 1}, "own")
    cluster.submit("none", replicas=1, topology={"nodeLabels": []})
    wait_until_running(cluster, "none", 1)
    assert told(cluster, "none") == {"none-worker-0": "is not to be told"}


@pytest.mark.parametrize(
    ("refused", "counted", "left"),
    [(reads_nodes, "get nodes", "-"), (patches_pods, "patch pods", "")],
)
def test_who_may_not_says_so_once_and_jobs_run(
    cluster: Scene, refused: Any, counted: str, left: str
) -> None:
    add_nodes(cluster.store, "n1", labels={"rack": "r1"})
    cluster.start(*SHORT_LEASE)
    with cluster.trouble(refused, 403, "Forbidden", 'x "n1" is forbidden: User "y" cannot do it'):
        cluster.submit(topology={"nodeLabels": ["rack"]})
        wait_until_running(cluster, "digits", 2)
        wait_until_told(cluster, {left: 2})
        cluster.wait_for(lambda: warnings(cluster), "a warning")
        cluster.scale("digits", 3)
        wait_until_running(cluster, "digits", 3)
        wait_until_told(cluster, {left: 3})
        assert_idle(cluster)
        assert cluster.counts()[counted] == 1
    [said] = warnings(cluster)
    assert 'User "y" cannot do it' in said and "topologyLabels" in said
    assert cluster.condition("digits", "Running")["status"] == "True"


def test_a_pod_that_has_its_place_later_is_told_then(cluster: Scene) -> None:
    add_nodes(cluster.store, "n1", labels={"rack": "r1"})
    cluster.kubelet.capacity = 2  # etcd, and one worker
    cluster.start("--topology-labels=rack")
    cluster.submit()
    wait_until_told(cluster, {"r1": 1, "": 1})
    assert cluster.counts()["get nodes"] == 1
    # A job trains with those of its pods that find a place.
    cluster.await_condition("digits", "Running")
    cluster.wait_for(
        lambda: cluster.job("digits")["status"]["replicaStatuses"]["Worker"]["pending"] == 1,
        "one waits",
    )

    cluster.kubelet.capacity = 3
    cluster.kubelet.place_pending()
    wait_until_told(cluster, {"r1": 2})
    wait_until_running(cluster, "digits", 2)
