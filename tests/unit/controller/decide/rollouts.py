"""What tests of rollouts share: jobs whose template changes, and how far that has come."""

from __future__ import annotations

from typing import Any

from elastic_runtime.controller.decide.job_types import Problem
from elastic_runtime.controller.decide.rollout import REFUSED
from tests.unit.controller.simulated import Cluster, running

REFUSAL = Problem(REFUSED, 'unknown field "spec.containers[0].arg"', "spec.…template")


def images(cluster: Cluster) -> dict[int, str]:
    """What the pods run, by index."""
    return {index: cluster.worker(index)["image"] for index in cluster.indices}


def in_round(replicas: int = 3, **spec: Any) -> Cluster:
    """A job whose pods are replaced one after the other, and whose agents are in round 1."""
    cluster = running(replicas, rollout="Rolling", **spec)
    cluster.in_round(1, min(replicas, cluster.job["spec"]["maxReplicas"])).settle()
    return cluster


def rolling(replicas: int = 3, **spec: Any) -> Cluster:
    """The same, and the template has just changed."""
    cluster = in_round(replicas, **spec)
    cluster.change_template().settle()
    return cluster


def succeeded(cluster: Cluster, ago: float = 15.0) -> Cluster:
    """The same, and the pod that left is followed by another, which runs and is in no round."""
    left = len(cluster.indices)
    cluster.vanish().in_round(2, left).settle()
    cluster.run(ago=ago).settle()
    return cluster
