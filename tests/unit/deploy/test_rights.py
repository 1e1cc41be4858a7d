"""The rights that the manifests give the controller: all that it uses, and no others.

A real controller, with the arguments of the Deployment, runs jobs in a fake cluster that refuses
what the rules do not grant.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.kube.cluster import FakeCluster
from tests.kube.disruptions import add_nodes
from tests.kube.kinds import BUDGET, JOB, SERVICE
from tests.kube.kueue import Kueue
from tests.kube.pod_groups import VOLCANO
from tests.unit.deploy.admission import elasticjob
from tests.unit.deploy.files import DEPLOY, SAMPLES, Object, identity, jobs, objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kube.kinds import Kind
    from tests.kube.server import Request

HOME = "elastic-job"
RBAC = {identity(each): each for each in objects(DEPLOY / "controller" / "rbac.yaml")}
IN_THE_CLUSTER = RBAC["ClusterRole", "", "elastic-controller"]["rules"]
LEASE = RBAC["Role", HOME, "elastic-controller-lease"]["rules"]
# What only a real API server asks for: when blockOwnerDeletion is set.
UNSEEN = {"update elasticjobs/finalizers"}
[_COMPONENT] = objects(DEPLOY / "kustomize" / "components" / "topology" / "kustomization.yaml")
OF_TOPOLOGY = [
    added["value"]
    for each in _COMPONENT["patches"]
    if each["target"]["kind"] == "ClusterRole"
    for added in yaml.safe_load(each["patch"])
]


def granted(rules: list[Object], request: Request) -> bool:
    """Whether one of the rules allows a request."""
    resource = request.kind.plural + (f"/{request.sub}" if request.sub else "")
    return any(
        request.verb in rule["verbs"]
        and resource in rule["resources"]
        and request.kind.group in rule["apiGroups"]
        and request.name in rule.get("resourceNames", [request.name])
        for rule in rules
    )


def labels(rules: list[Object]) -> set[str]:
    """What rules grant, as requests are counted."""
    return {
        f"{verb} {resource}"
        for rule in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    add_nodes(cluster.store, "n1", "n2", labels={"zone": "z", "rack": "r"})
    yield cluster
    cluster.close()


@contextmanager
def controller(cluster: FakeCluster, tmp_path: Path, *more: str) -> Iterator[None]:
    """The controller as the Deployment starts it, on a free port."""
    [deployment] = [
        each
        for each in objects(DEPLOY / "controller" / "controller.yaml")
        if each["kind"] == "Deployment"
    ]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    arguments = [*container["command"][1:], *container["args"], "--liveness-port=0", *more]
    surroundings = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig")),
        "POD_NAME": "elastic-controller-0",
        "POD_NAMESPACE": HOME,
        "ELASTIC_ETCD_IMAGE": "etcd",
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=surroundings, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


def a_life_of_jobs(cluster: FakeCluster, namespace: str) -> None:
    """Makes the controller do everything that it can be made to do."""
    [job] = jobs(SAMPLES / "digits.yaml")
    job["metadata"]["namespace"] = namespace
    cluster.add(JOB, job)

    def edit(spec: Object) -> None:
        cluster.edit(JOB, "digits", {"spec": spec}, namespace)

    def runs(count: int) -> bool:
        pods = cluster.pods("digits").values()
        return [pod["status"]["phase"] for pod in pods] == ["Running"] * count

    def least() -> int:
        return int(cluster.store.get(BUDGET, namespace, "digits")["spec"]["minAvailable"])

    def is_gone(kind: Kind) -> bool:
        return not cluster.store.list(kind)

    cluster.wait_for(lambda: runs(2), "two pods run")
    for size in (3, 1):
        cluster.scale("digits", size, namespace)
        cluster.wait_for(lambda size=size: runs(size), f"{size} pods run")
    edit({"minReplicas": 2, "replicaSpecs": {"Worker": {"replicas": 2}}})
    cluster.wait_for(lambda: least() == 2, "the budget keeps two pods")
    edit({"minReplicas": 1, "replicaSpecs": {"Worker": {"replicas": 1}}})
    cluster.wait_for(lambda: runs(1), "one pod runs")
    edit({"suspend": True})
    cluster.wait_for(lambda: runs(0) and is_gone(BUDGET), "the job is suspended")
    edit({"suspend": False})
    cluster.wait_for(lambda: runs(1), "the job goes on")
    cluster.kubelet.finish(namespace, "digits-worker-0", 0)
    cluster.wait_for(lambda: is_gone(SERVICE), "the job has ended")
    edit({"ttlSecondsAfterFinished": 0})
    cluster.wait_for(lambda: is_gone(JOB), "the job is deleted")


def lives_in_queues(cluster: FakeCluster, namespace: str) -> None:
    """A job that waits for quota of Kueue and is suspended, and a gang."""
    cluster.server.catalogue.kinds.append(VOLCANO)
    kueue = Kueue(cluster.store, quota=1)
    [job] = jobs(SAMPLES / "digits.yaml")
    job["metadata"]["namespace"] = namespace
    for name, scheduling in (("queued", {"queue": "team"}), ("gang", {"gang": "volcano"})):
        bounds = {"minReplicas": 2, "scheduling": scheduling}
        named = {**job["metadata"], "name": name}
        cluster.add(JOB, {**job, "metadata": named, "spec": {**job["spec"], **bounds}})
    cluster.wait_for(lambda: len(cluster.pods("queued")) == 2, "two pods wait")
    cluster.wait_for(lambda: len(cluster.pods("gang")) == 2, "two pods are placed together")
    for name in ("queued", "gang"):
        cluster.edit(JOB, name, {"spec": {"suspend": True}}, namespace)
    cluster.wait_for(
        lambda: not cluster.pods("queued") and not cluster.store.list(VOLCANO), "all are gone"
    )
    kueue.stop()


@pytest.mark.parametrize(
    ("alone", "labels_of_nodes"),
    [(False, ""), (True, ""), (False, "zone,rack")],
    ids=["of the cluster", "of its namespace", "with labels of nodes"],
)
def test_the_controller_uses_the_rights_that_it_has_and_needs_no_others(
    alone: bool, labels_of_nodes: str, cluster: FakeCluster, tmp_path: Path
) -> None:
    everywhere, at_home = ([], IN_THE_CLUSTER + LEASE) if alone else (IN_THE_CLUSTER, LEASE)
    options = [f"--namespace={HOME}"] if alone else []
    if labels_of_nodes:
        everywhere = everywhere + OF_TOPOLOGY
        options.append(f"--topology-labels={labels_of_nodes}")
    refused: set[str] = set()

    def is_refused(request: Request) -> bool:
        if granted(everywhere + (at_home if request.namespace == HOME else []), request):
            return False
        refused.add(request.label)
        return True

    # What users may do is not looked at: they work on the store.
    with (
        cluster.trouble(is_refused, 403, "Forbidden", "no rule grants that"),
        controller(cluster, tmp_path, *options),
    ):
        a_life_of_jobs(cluster, HOME if alone else "default")
        lives_in_queues(cluster, HOME if alone else "default")
    assert refused == set(), (tmp_path / "log").read_text()
    used = set(cluster.counts())
    assert labels(everywhere + at_home) - used == UNSEEN
    of_topology = labels(OF_TOPOLOGY)
    assert used & of_topology == (of_topology if labels_of_nodes else set())
    # A real API server drops what the schema does not know, also of a status.
    states = [change.item for change in cluster.store.history if change.kind == JOB]
    assert [refusal for state in states for refusal in elasticjob().refusals(state)] == []
