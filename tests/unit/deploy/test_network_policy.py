"""Whom the network policies let in, as Kubernetes reads them."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.manifests import METRICS_PORT, labels
from elastic_runtime.defaults import ETCD_PORT
from tests.unit.deploy.files import DEPLOY, Object, objects
from tests.unit.deploy.rendering import charted

POLICIES = DEPLOY / "network-policy"
[OF_NAMESPACE] = objects(POLICIES / "namespace.yaml")
[OF_JOB] = objects(POLICIES / "job.yaml")
[CONTROLLER] = [
    each for each in objects(DEPLOY / "controller/controller.yaml") if each["kind"] == "Deployment"
]

# Each with its namespace; the policies are in "team".
WORKER = ("team", labels("digits", "worker"))
ETCD = ("team", labels("digits", "etcd"))
OTHER_JOB = ("team", labels("other", "worker"))
JOB_ELSEWHERE = ("elsewhere", labels("digits", "worker"))
STRANGER = ("team", {"app": "web", "job-name": "digits"})
OPERATOR = ("elastic-job", CONTROLLER["spec"]["template"]["metadata"]["labels"])
PRETENDER = ("team", OPERATOR[1])

Pod = tuple[str, dict[str, str]]


def fits(selector: Object, found: dict[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}
    return selector["matchLabels"].items() <= found.items()


def admits(policy: Object, to: Pod, by: Pod, port: int) -> bool:
    """Whether a pod may connect to another one, where this is the only policy."""
    spec = policy["spec"]
    if to[0] != "team" or not fits(spec["podSelector"], to[1]):
        return True  # it says nothing about this pod
    return any(
        any(_is_peer(peer, by) for peer in rule["from"])
        and ("ports" not in rule or {"port": port, "protocol": "TCP"} in rule["ports"])
        for rule in spec["ingress"]
    )


def _is_peer(peer: dict[str, Any], pod: Pod) -> bool:
    namespace = {"kubernetes.io/metadata.name": pod[0]}
    near = pod[0] == "team" if "namespaceSelector" not in peer else True
    return (
        near
        and fits(peer.get("namespaceSelector", {"matchLabels": {}}), namespace)
        and fits(peer["podSelector"], pod[1])
    )


@pytest.mark.parametrize("policy", [OF_NAMESPACE, OF_JOB], ids=["namespace", "job"])
def test_a_job_works_and_strangers_are_kept_out(policy: Object) -> None:
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    for port in (ETCD_PORT, METRICS_PORT, 20001, 45123):
        assert admits(policy, WORKER, WORKER, port)
        assert admits(policy, ETCD, WORKER, port)
        for stranger in (STRANGER, JOB_ELSEWHERE, PRETENDER):
            assert not admits(policy, WORKER, stranger, port)
            assert not admits(policy, ETCD, stranger, port)
    assert admits(policy, WORKER, OPERATOR, METRICS_PORT)
    assert not admits(policy, WORKER, OPERATOR, 20001)
    assert not admits(policy, ETCD, OPERATOR, ETCD_PORT)
    assert admits(policy, STRANGER, STRANGER, 80)  # nobody else is affected


def test_jobs_of_a_namespace_reach_each_other_unless_each_has_its_own_policy() -> None:
    assert admits(OF_NAMESPACE, ETCD, OTHER_JOB, ETCD_PORT)
    assert not admits(OF_JOB, ETCD, OTHER_JOB, ETCD_PORT)


def test_the_chart_makes_the_same_of_each_namespace() -> None:
    made = [
        each for each in charted(policyNamespaces=["one", "two"]) if each["kind"] == "NetworkPolicy"
    ]
    assert [each["metadata"]["namespace"] for each in made] == ["one", "two"]
    assert [each["spec"] for each in made] == [OF_NAMESPACE["spec"]] * 2
    assert not [each for each in charted() if each["kind"] == "NetworkPolicy"]
