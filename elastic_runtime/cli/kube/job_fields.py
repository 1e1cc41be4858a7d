"""Which fields an ElasticJob has: a misspelt one would be passed over, also by the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.spec.field_reader import InvalidSpec
from elastic_runtime.controller.spec.job_spec import WORKER
from elastic_runtime.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.cli.kube.job_client import Object

# By name: the fields of an object, [the fields of each object of a list], or None for whatever is
# not ours to know. The same as in the definition of the resource (deploy/crd.yaml).
Fields = dict[str, Any]

_METADATA = dict.fromkeys(
    (
        *("name", "generateName", "namespace", "labels", "annotations", "finalizers"),
        *("ownerReferences", "uid", "resourceVersion", "generation", "creationTimestamp"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"),
    )
)
_RULE: Fields = {
    "action": None,
    "onExitCodes": {"operator": None, "values": None},
    "onReasons": None,
}
_SPEC: Fields = {
    **dict.fromkeys(
        (
            *("rdzvEndpoint", "rdzvBackend", "rdzvId", "minReplicas", "maxReplicas"),
            *("nprocPerNode", "spares", "maxRestarts", "suspend", "cleanPodPolicy"),
            *("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"),
            *("schedulingPolicy", "rollout", "managedBy", "priorityClassName"),
        )
    ),
    "failurePolicy": {"rules": [_RULE]},
    "scheduling": dict.fromkeys(("queue", "priorityClass", "surplusPriorityClass", "gang")),
    "topology": {"nodeLabels": None},
    "checkpoint": dict.fromkeys(("claimName", "mountPath", "url")),
    "etcd": {
        "image": None,
        "tls": {"secretName": None},
        "auth": {"secretName": None},
        "template": {"metadata": _METADATA, "spec": None},
    },
    "replicaSpecs": {
        WORKER: {
            "replicas": None,
            "restartPolicy": None,
            "template": {"metadata": _METADATA, "spec": None},
        }
    },
}
FIELDS: Fields = {
    "apiVersion": None,
    "kind": None,
    "metadata": _METADATA,
    "spec": _SPEC,
    "status": None,
}


def check_fields(job: Object) -> None:
    """Makes sure that each field of a job has a meaning.

    Raises:
        InvalidSpec: one has none.
    """
    _check(job, FIELDS, "")


def _check(value: Any, known: Any, path: str) -> None:
    if isinstance(known, list) and isinstance(value, list):
        for place, item in enumerate(value):
            _check(item, known[0], f"{path}[{place}]")
    elif isinstance(known, dict) and isinstance(value, dict):
        _check_object(value, known, path)


def _check_object(value: Mapping[Any, Any], known: Fields, path: str) -> None:
    for name, within in value.items():
        here = f"{path}.{name}" if path else str(name)
        if name not in known:
            raise InvalidSpec(here, f"there is no such field{did_you_mean(str(name), known)}")
        _check(within, known[name], here)
