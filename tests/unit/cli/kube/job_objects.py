"""A job of a cluster, its pods and its events, as an API server gives them."""

from __future__ import annotations

from typing import Any

BORN = "2026-01-02T03:04:05Z"


def a_job(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    container = {"name": "elasticjob-worker", "image": "x:1", "args": ["train.py", "--lr", 1]}
    sidecar = {"name": "proxy", "image": "y:1"}
    worker = {"replicas": 3, "template": {"spec": {"containers": [sidecar, container]}}}
    return {
        "metadata": {
            "name": "one",
            "namespace": "team",
            "uid": "u1",
            "generation": 2,
            "creationTimestamp": BORN,
        },
        "spec": {
            "minReplicas": 1,
            "maxReplicas": 4,
            "replicaSpecs": {"Worker": worker},
            **(spec or {}),
        },
        "status": status,
    }


def conditions_of(*holding: str) -> list[dict[str, str]]:
    types = ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
    return [
        {
            "type": type_,
            "status": str(type_ in holding),
            "reason": f"{type_}Reason",
            "message": f"why {type_}",
            "lastTransitionTime": BORN,
        }
        for type_ in types
    ]


def a_pod(index: int | None = 0, state: dict[str, Any] | None = None, **status: Any) -> Any:
    labels = {"app.kubernetes.io/component": "etcd" if index is None else "worker"}
    if index is not None:
        labels |= {"replica-index": str(index), "elastic.pytorch.org/attempt": "1"}
    statuses = [] if state is None else [{"name": "elasticjob-worker", "state": state}]
    return {
        "metadata": {
            "name": "one-etcd" if index is None else f"one-worker-{index}",
            "labels": labels,
            "creationTimestamp": BORN,
        },
        "spec": {"containers": [{"name": "elasticjob-worker"}], "nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": statuses,
            **status,
        },
    }


def an_event(kind: str, name: str, at: str = BORN, uid: str | None = None, **more: Any) -> Any:
    about = {"kind": kind, "name": name, **({} if uid is None else {"uid": uid})}
    return {"metadata": {}, "involvedObject": about, "lastTimestamp": at, "reason": "R", **more}
