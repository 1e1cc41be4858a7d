"""From objects of the API server to what a decision needs of them; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_runtime.controller.decide.groups.quota_groups import (
    FINALIZER,
    GROUP_LABEL,
    RETRIABLE_ANNOTATION,
)
from elastic_runtime.controller.decide.job_types import EtcdView, PodView
from elastic_runtime.controller.decide.manifests import (
    ATTEMPT_LABEL,
    COMPONENT_LABEL,
    INDEX_LABEL,
    SETTINGS_ANNOTATION,
    TEMPLATE_ANNOTATION,
)
from elastic_runtime.controller.decide.node_topology import TOPOLOGY_ANNOTATION
from elastic_runtime.controller.read_report import read_last_report
from elastic_runtime.controller.spec.job_spec import CONTAINER
from elastic_runtime.controller.spec.pod_template import ETCD_CONTAINER
from elastic_runtime.kubernetes.api_times import parse_time
from elastic_runtime.reporting.last_words import read_last_words

Json = Mapping[str, Any]
Key = tuple[str, str]  # namespace and name of an ElasticJob

# Everything that this controller makes; a label selector.
MANAGED = "app.kubernetes.io/managed-by=elastic-runtime"

# Said of every container that ends, with or without a reason of its own.
_NO_REASON = ("Error", "Completed")
# Kueue's condition of a pod that it deletes.
_KUEUE_TARGET = "TerminationTarget"
# Said of every container that has not started yet.
_STARTS = ("ContainerCreating", "PodInitializing")


def owner(item: Json) -> tuple[Key, str] | None:
    """Which ElasticJob an object belongs to, and that one's uid; none if to no job."""
    for one in item["metadata"].get("ownerReferences") or ():
        if one.get("kind") == "ElasticJob" and one.get("controller"):
            return (item["metadata"]["namespace"], one["name"]), one["uid"]
    return None


def pod_view(item: Json) -> PodView | EtcdView:
    """A pod of a job: a worker, or its etcd."""
    labels = item["metadata"].get("labels") or {}
    return _etcd(item) if labels.get(COMPONENT_LABEL) == "etcd" else _worker(item, labels)


def service_address(item: Json) -> str:
    """The cluster IP of a Service; "" while it has none."""
    return str((item.get("spec") or {}).get("clusterIP") or "")


def min_available(item: Json) -> int | None:
    """How many pods a PodDisruptionBudget keeps; none if it is not said as a number."""
    least = (item.get("spec") or {}).get("minAvailable")
    return least if isinstance(least, int) else None


def _worker(item: Json, labels: Mapping[str, str]) -> PodView:
    meta, status = item["metadata"], item.get("status") or {}
    state = _container(item).get("state") or {}
    ended, waiting = state.get("terminated") or {}, _waiting(item, state)
    started = ended or state.get("running") or {}
    words, report = read_last_words(str(ended.get("message") or ""))
    reason, message = _why(status, ended, words)
    unschedulable, since = _unschedulable(status)
    return PodView(
        name=meta["name"],
        index=_number(labels.get(INDEX_LABEL)),
        uid=meta["uid"],
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        phase=status.get("phase") or "Pending",
        ready=_condition(status, "Ready").get("status") == "True",
        deleting=bool(meta.get("deletionTimestamp")),
        forced=meta.get("deletionGracePeriodSeconds") == 0,
        exit_code=ended.get("exitCode"),
        reason=reason,
        message=message,
        created_at=parse_time(meta.get("creationTimestamp")),
        started_at=parse_time(started.get("startedAt")),
        finished_at=parse_time(ended.get("finishedAt")),
        restarts=_container(item).get("restartCount") or 0,
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        unschedulable=unschedulable,
        unplaced_since=since,
        address=status.get("podIP") or "",
        node=(item.get("spec") or {}).get("nodeName") or "",
        template=(meta.get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""),
        settings=(meta.get("annotations") or {}).get(SETTINGS_ANNOTATION, ""),
        gates=_gates(item),
        group=labels.get(GROUP_LABEL, ""),
        held=FINALIZER in (meta.get("finalizers") or ()),
        final=(meta.get("annotations") or {}).get(RETRIABLE_ANNOTATION) == "false",
        quota_taken=_quota_taken(status),
        last_report=read_last_report(report),
        topology=(meta.get("annotations") or {}).get(TOPOLOGY_ANNOTATION),
    )


def _etcd(item: Json) -> EtcdView:
    meta, status = item["metadata"], item.get("status") or {}
    waiting = _waiting(item, _container(item).get("state") or {})
    unschedulable, since = _unschedulable(status)
    containers = (item.get("spec") or {}).get("containers") or ()
    images = [one.get("image") for one in containers if one.get("name") == ETCD_CONTAINER]
    return EtcdView(
        name=meta["name"],
        uid=meta["uid"],
        phase=status.get("phase") or "Pending",
        ready=_condition(status, "Ready").get("status") == "True",
        deleting=bool(meta.get("deletionTimestamp")),
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        unschedulable=unschedulable,
        unplaced_since=since,
        node=(item.get("spec") or {}).get("nodeName") or "",
        template=(meta.get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""),
        image=str(images[0] or "") if images else "",
        created_at=parse_time(meta.get("creationTimestamp")),
        unready_since=_unready_since(meta, status),
    )


def _unready_since(meta: Json, status: Json) -> float:
    ready = _condition(status, "Ready")
    if meta.get("deletionTimestamp"):
        return parse_time(meta["deletionTimestamp"])
    if ready.get("status") == "True":
        return 0.0
    return parse_time(ready.get("lastTransitionTime") or meta.get("creationTimestamp"))


def _container(item: Json) -> Json:
    """What is said of the container that matters: the worker's, else the first of the spec's."""
    names = [one.get("name") for one in (item.get("spec") or {}).get("containers") or ()]
    wanted = CONTAINER if CONTAINER in names else next(iter(names), "")
    found: Sequence[Json] = (item.get("status") or {}).get("containerStatuses") or ()
    return next((one for one in found if one.get("name") == wanted), {})


def _waiting(item: Json, state: Json) -> Json:
    """Why the container that matters does not start; it may be another one that keeps it."""
    own: Json = state.get("waiting") or {}
    if state and own.get("reason") not in _STARTS:
        return own
    status = item.get("status") or {}
    others = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    held = [(one.get("state") or {}).get("waiting") or {} for one in others]
    return next((one for one in held if one.get("reason") not in (None, *_STARTS)), own)


def _why(status: Json, ended: Json, words: str) -> tuple[str, str]:
    """Why a pod ended: what the cluster did to it says more than how its container took it.

    Args:
        status: of the pod.
        ended: how its container ended.
        words: the last ones of the container, for people.
    """
    target = _condition(status, "DisruptionTarget")
    if target.get("status") == "True" and target.get("reason"):
        return target["reason"], target.get("message") or ""
    if status.get("reason"):
        return status["reason"], status.get("message") or ""
    reason = ended.get("reason") or ""
    return ("" if reason in _NO_REASON else reason), words


def _unschedulable(status: Json) -> tuple[str, float]:
    """The scheduler's message, and since when it says so; "" if it has found a place."""
    placed = _condition(status, "PodScheduled")
    if placed.get("status") == "False" and placed.get("reason") == "Unschedulable":
        message = placed.get("message") or "no node has room for it"
        return message, parse_time(placed.get("lastTransitionTime"))
    return "", 0.0


def _gates(item: Json) -> tuple[str, ...]:
    """What keeps the scheduler from a pod."""
    found = (item.get("spec") or {}).get("schedulingGates") or ()
    return tuple(str(gate.get("name", "")) for gate in found)


def _quota_taken(status: Json) -> str:
    """Why Kueue takes a pod away; "" if it does not."""
    target = _condition(status, _KUEUE_TARGET)
    if target.get("status") != "True":
        return ""
    return str(target.get("message") or target.get("reason") or "no reason is given")


def _condition(status: Json, type: str) -> Json:
    return next((one for one in status.get("conditions") or () if one.get("type") == type), {})


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
