"""The job's own etcd in the cluster: its pod, its Service, and what keeps it from being drained."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.manifests import (
    JOB_LABEL,
    TEMPLATE_ANNOTATION,
    TYPE_LABEL,
    etcd_name,
    owned_metadata,
)
from elastic_runtime.controller.spec.pod_template import ETCD_CONTAINER
from elastic_runtime.defaults import ETCD_PORT
from elastic_runtime.kubernetes.pod_merge import merge_pod

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Json
    from elastic_runtime.controller.spec.job_spec import JobSpec

ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.21"


def etcd_pod(spec: JobSpec, default_image: str = ETCD_IMAGE) -> Json:
    """The pod of the job's own etcd.

    Its data is in an emptyDir: a pod that is replaced starts with nothing, and the agents of a
    running job register again.

    Args:
        spec: the job; ``spec.etcd.template`` is merged into the pod.
        default_image: if the job does not choose.
    """
    pod = {
        "containers": [_etcd_container(spec, default_image)],
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    if spec.priority_class:
        pod["priorityClassName"] = spec.priority_class
    given = spec.etcd.template
    pod = merge_pod(pod, given.get("spec") or {})
    said, metadata = given.get("metadata") or {}, owned_metadata(spec, etcd_name(spec.name), "etcd")
    metadata["labels"] = {**(said.get("labels") or {}), **metadata["labels"]}
    mark = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:12]
    metadata["annotations"] = {**(said.get("annotations") or {}), TEMPLATE_ANNOTATION: mark}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _etcd_container(spec: JobSpec, default_image: str) -> dict[str, Any]:
    return {
        "name": ETCD_CONTAINER,
        "image": spec.etcd.image or default_image,
        "imagePullPolicy": "IfNotPresent",
        "command": _etcd_command(etcd_name(spec.name)),
        "ports": [{"name": "client", "containerPort": ETCD_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "client"},
            "periodSeconds": 1,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": {"path": "/health?serializable=true", "port": "client"},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}],
    }


def _etcd_command(name: str) -> list[str]:
    # Leases are counted in elections: with these intervals one of 5 s is granted as 5 s.
    return [
        "etcd",
        "--name=etcd",
        "--data-dir=/var/lib/etcd/data",
        f"--listen-client-urls=http://0.0.0.0:{ETCD_PORT}",
        f"--advertise-client-urls=http://{name}:{ETCD_PORT}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--heartbeat-interval=100",
        "--election-timeout=1000",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
    ]


def etcd_service(spec: JobSpec) -> Json:
    """The Service in front of the job's own etcd."""
    name = etcd_name(spec.name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(spec, name, "etcd"),
        "spec": {
            "selector": _selector(spec),
            "ports": [{"name": "client", "port": ETCD_PORT, "targetPort": ETCD_PORT}],
        },
    }


def etcd_guard(spec: JobSpec) -> Json:
    """The PodDisruptionBudget that lets no drain take the etcd, as long as it is there.

    It stands while a worker is on the same node: that one goes first, while there is an etcd to
    say goodbye to. Both at once would leave the other workers without a store in the middle of a
    change.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(spec, etcd_name(spec.name), "etcd"),
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": _selector(spec)},
            # One that is not ready keeps nobody's place.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _selector(spec: JobSpec) -> dict[str, str]:
    return {JOB_LABEL: spec.name, TYPE_LABEL: "etcd"}
