"""What pods are told of the place of their node in the network: labels of the node, far to near.

A pod cannot see the labels of its node, and has none before it is scheduled. So it mounts an
annotation of its own as a file, empty at first (the downward API), and the controller fills that in
when the pod has a node. The kubelet writes the file anew when the annotation changes; the agent
waits a few seconds for it, and goes on without. docs/architecture.md has the times.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import NoteTopology, Problem
from elastic_runtime.controller.spec.job_spec import API_GROUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.controller.decide.plan_context import PlanContext
    from elastic_runtime.controller.spec.job_spec import JobSpec

TOPOLOGY_ANNOTATION = f"{API_GROUP}/topology"
# What the annotation says where nothing is known; an agent does not wait for more.
NOTHING = "-"
VOLUME, DIRECTORY = "elastic-topology", "/etc/elastic/topology"
_FILE = "levels"
# The agent's: the levels themselves, and a file with them.
_ENV, _ENV_FILE = "ELASTIC_NODE_TOPOLOGY", "ELASTIC_NODE_TOPOLOGY_FILE"
# The characters of a label's value, which is what the API server lets through.
_ODD = re.compile(r"[^A-Za-z0-9._-]")


def with_default(spec: JobSpec, labels: tuple[str, ...]) -> JobSpec:
    """A spec with the labels of the controller, unless the job has its own.

    Args:
        spec: of the job.
        labels: keys of labels of nodes, nearest last; empty: pods are told nothing.
    """
    return spec if spec.node_labels is not None else replace(spec, node_labels=labels)


# ---------------------------------------------------------------- in a pod


def is_told(spec: JobSpec) -> bool:
    """Whether new pods are told where they are; not those that say or mount something there."""
    if not spec.node_labels:
        return False
    worker = spec.template["spec"]["containers"][spec.container]
    said = {each.get("name") for each in worker.get("env") or ()}
    mounts = (str(each.get("mountPath", "")) for each in worker.get("volumeMounts") or ())
    return said.isdisjoint((_ENV, _ENV_FILE)) and DIRECTORY not in (m.rstrip("/") for m in mounts)


def pod_annotations(spec: JobSpec) -> dict[str, str]:
    """Of a new pod: there, and empty, it asks to be filled in."""
    return {TOPOLOGY_ANNOTATION: ""} if is_told(spec) else {}


def pod_variables(spec: JobSpec) -> list[dict[str, Any]]:
    """Of the worker container."""
    return [{"name": _ENV_FILE, "value": f"{DIRECTORY}/{_FILE}"}] if is_told(spec) else []


def pod_volumes(spec: JobSpec) -> list[tuple[str, str, dict[str, Any], bool]]:
    """The volume, as ``manifests`` mounts it: name, place, source, read-only.

    The directory is mounted, as a single file (``subPath``) would stay as it was at the start.
    """
    if not is_told(spec):
        return []
    field = {"fieldPath": f"metadata.annotations['{TOPOLOGY_ANNOTATION}']"}
    source = {"downwardAPI": {"items": [{"path": _FILE, "fieldRef": field}]}}
    return [(VOLUME, DIRECTORY, source, True)]


# ---------------------------------------------------------------- what is filled in


def levels(values: Sequence[str]) -> str:
    """What a pod is told.

    Args:
        values: of the labels of its node, nearest last; "": the node has no such label. What is
            nearer than that tells nothing: racks of different zones may have one name.

    Returns:
        ``zone/block/rack``, or ``NOTHING``.
    """
    known = list(values[: values.index("")] if "" in values else values)
    return "/".join(_ODD.sub("_", value) for value in known) or NOTHING


def fill_in(context: PlanContext) -> None:
    """Asks for the topology of pods that have a node and were not told yet.

    It comes last, and what is wrong with it keeps no job from running: no condition names it.
    """
    labels = context.spec.node_labels
    if not labels:
        return
    context.problems.extend(context.observed.asides)
    doomed = context.doomed
    for pod in context.pods:
        stays = not pod.ended and not pod.deleting and pod.uid not in doomed
        if pod.node and pod.topology == "" and stays:
            context.actions.append(NoteTopology(pod.name, pod.uid, pod.node, labels))


def unknown(said: str) -> Problem:
    """That pods are not told where they are.

    Args:
        said: why, by the API server.
    """
    # The name of a pod or node is in front of it: each would be news.
    said = said.partition(" is forbidden: ")[2] or said
    return Problem(
        "TopologyUnknown",
        "workers are not told where in the network their nodes are, and ranks are not ordered by "
        f"it, as the controller lacks a right ({said}): set topologyLabels in Helm, or add "
        "deploy/kustomize/components/topology, or have the job ask for nothing "
        "(spec.topology.nodeLabels: [])",
        "spec.topology",
    )
