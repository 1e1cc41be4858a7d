"""What tests of rollouts share: templates that change, and rounds that agents report."""

from __future__ import annotations

from typing import Any

from elastic_runtime.controller.decide.job_types import AgentReport, Problem
from elastic_runtime.controller.decide.rollout import REFUSED
from tests.unit.controller.simulated import Cluster, running

REFUSAL = Problem(REFUSED, 'unknown field "spec.containers[0].arg"', "spec.…template")


def change_template(cluster: Cluster, image: str = "img:2") -> None:
    """A user changes the image of the workers."""
    worker = cluster.job["spec"]["replicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["image"] = image
    cluster.edit()


def images(cluster: Cluster) -> dict[int, str]:
    """What the pods run, by index."""
    found = {}
    for pod in cluster.pods.values():
        found[pod.index] = cluster.manifests[pod.name]["spec"]["containers"][0]["image"]
    return dict(sorted(found.items()))


def in_round(cluster: Cluster, number: int, nodes: int) -> None:
    """The agents are in this round."""
    cluster.report = AgentReport(round=number, world=nodes, nodes=nodes, ready=True)


def leaving(cluster: Cluster) -> list[int]:
    return sorted(pod.index for pod in cluster.pods.values() if pod.deleting)


def rolling(replicas: int = 3, **spec: Any) -> Cluster:
    """A job whose agents are in round 1, and whose template has just changed."""
    cluster = running(replicas, rollout="Rolling", **spec)
    in_round(cluster, 1, replicas)
    cluster.settle()
    change_template(cluster)
    cluster.settle()
    return cluster
