"""Controllers come and go; jobs run on, and one controller leads."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests import processes
from tests.integration.controller.conftest import (
    NAMESPACE,
    SHORT_LEASE,
    uids,
    wait_until_running,
)
from tests.kube.kinds import LEASE

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene
    from tests.kube.cluster import FakeCluster

_NAME = "elastic-controller"
_PATIENCE = 60.0


def holder(cluster: FakeCluster) -> str:
    lease = cluster.store.find(LEASE, NAMESPACE, _NAME) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", ""))


def test_a_controller_that_was_away_goes_on_where_things_are(cluster: Scene) -> None:
    first = cluster.start(*SHORT_LEASE)
    cluster.submit(replicas=3)
    wait_until_running(cluster, "digits", 3)
    before = uids(cluster)

    first.end(signal.SIGKILL)
    cluster.kubelet.finish(NAMESPACE, "digits-worker-1", 143)
    cluster.scale("digits", 4)
    cluster.start(*SHORT_LEASE)

    wait_until_running(cluster, "digits", 4)
    after = uids(cluster)
    kept = ("digits-worker-0", "digits-worker-2")
    assert [after[name] for name in kept] == [before[name] for name in kept]
    assert after["digits-worker-1"] != before["digits-worker-1"]


def test_a_restart_in_the_middle_makes_nothing_twice(cluster: Scene) -> None:
    cluster.kubelet.runs = False
    first = cluster.start(*SHORT_LEASE)
    cluster.submit(replicas=4)
    cluster.wait_for(lambda: cluster.pods("digits", "etcd"), "the etcd that the pods wait for")
    cluster.kubelet.run(NAMESPACE, "digits-etcd")
    cluster.wait_for(lambda: cluster.pods("digits"), "the first of the pods")
    first.end(signal.SIGKILL)
    before = uids(cluster)

    cluster.start(*SHORT_LEASE)
    cluster.wait_for(lambda: len(cluster.pods("digits")) == 4, "all pods")
    cluster.kubelet.runs = True
    cluster.kubelet.place_pending()
    wait_until_running(cluster, "digits", 4)
    assert before.items() <= uids(cluster).items()


def test_another_takes_over_from_one_that_was_killed(cluster: Scene) -> None:
    first = cluster.start(*SHORT_LEASE)
    leads = holder(cluster)
    second = cluster.start(*SHORT_LEASE, ready=False)
    second.wait_for_log(f'"holder": "{leads}"')
    assert second.probe("/readyz")[0] == 200  # it stands by, which is what it is for

    first.end(signal.SIGKILL)
    second.wait_until_ready()

    assert leads and holder(cluster) not in ("", leads)
    cluster.submit()
    wait_until_running(cluster, "digits", 2)
    assert second.end(signal.SIGTERM) == 0
    assert holder(cluster) == "", "who is told to end lets the lease go"


def test_a_renewal_that_fails_is_tried_again_until_another_one_leads(cluster: Scene) -> None:
    def renewals() -> int:
        return cluster.counts()["update leases"]

    first = cluster.start(*SHORT_LEASE)
    with cluster.trouble(lambda asked: asked.kind == LEASE, 500, "InternalError", "no store", 1):
        first.wait_for_log("lease.failed")
    before = renewals()
    processes.wait_for(
        lambda: renewals() > before + 1 or first.process.poll() is not None,
        _PATIENCE,
        "renewals",
        first.story,
    )
    assert first.process.poll() is None, first.story()

    cluster.edit(LEASE, _NAME, {"spec": {"holderIdentity": "somebody"}})

    assert first.process.wait(20) == 1
    assert "another one leads" in first.log.read_text()
    assert holder(cluster) == "somebody"


def test_who_cannot_renew_the_lease_ends(cluster: Scene) -> None:
    first = cluster.start(*SHORT_LEASE)

    with cluster.trouble(lambda asked: asked.kind == LEASE, 500, "InternalError", "no store"):
        assert first.process.wait(20) == 1
    assert "could not be renewed" in first.log.read_text()


def test_without_a_cluster_it_says_what_is_missing(cluster: Scene) -> None:
    cluster.kubeconfig = lambda path, *_: path  # type: ignore[method-assign,assignment]
    controller = cluster.start(ready=False)

    assert controller.process.wait(20) == 2
    log = controller.log.read_text()
    assert "name one with KUBECONFIG" in log
    assert "Traceback" not in log
