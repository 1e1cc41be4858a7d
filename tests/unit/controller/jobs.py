"""ElasticJobs for tests, as the API server would have them."""

from __future__ import annotations

import copy
from typing import Any

UID = "6f1c"

_CLASSIC_WORKER = {
    "name": "elasticjob-worker",
    "image": "torchelastic/examples:0.2.0",
    "imagePullPolicy": "Always",
    "args": ["--nproc_per_node=1", "/workspace/main.py", "--epochs=1"],
}
CLASSIC: dict[str, Any] = {
    "apiVersion": "elastic.pytorch.org/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "imagenet", "namespace": "elastic-job", "uid": UID, "generation": 1},
    "spec": {
        "rdzvEndpoint": "etcd-service:2379",
        "minReplicas": 1,
        "maxReplicas": 2,
        "replicaSpecs": {
            "Worker": {
                "replicas": 2,
                "restartPolicy": "ExitCode",
                "template": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "spec": {"containers": [_CLASSIC_WORKER]},
                },
            }
        },
    },
}


def job(*, replicas: int | None = 2, worker: dict[str, Any] | None = None, **spec: Any) -> Any:
    """A job of 1 to 4 pods with an etcd of its own.

    Args:
        replicas: pods asked for; None: left out.
        worker: further fields of ``replicaSpecs.Worker``.
        spec: further fields of the spec; one that is None is left out.
    """
    sized = {} if replicas is None else {"replicas": replicas}
    made: dict[str, Any] = {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "namespace": "ns", "uid": UID, "generation": 1},
        "spec": {
            "minReplicas": 1,
            "maxReplicas": 4,
            "replicaSpecs": {
                "Worker": {
                    "template": {"spec": {"containers": [{"name": "main", "image": "img:1"}]}},
                    **sized,
                    **(worker or {}),
                }
            },
            **spec,
        },
    }
    made["spec"] = {name: value for name, value in made["spec"].items() if value is not None}
    return copy.deepcopy(made)


def container(job: Any, **fields: Any) -> Any:
    """The job with these fields in its worker container."""
    made = copy.deepcopy(job)
    template_of(made)["spec"]["containers"][0].update(fields)
    return made


def template_of(job: Any) -> Any:
    """The template of the job's workers."""
    return job["spec"]["replicaSpecs"]["Worker"]["template"]


_RULE = {
    "action": "Count",
    "onExitCodes": {"operator": "In", "values": [3]},
    "onReasons": ["OOMKilled"],
}
# Every field of the spec, and what else of a template is read.
FULL = container(
    job(
        rdzvEndpoint="etcd:2379",
        rdzvBackend="etcd-v3",
        rdzvId="mine",
        nprocPerNode="auto",
        suspend=False,
        spares=1,
        maxRestarts=1,
        cleanPodPolicy="All",
        ttlSecondsAfterFinished=10,
        activeDeadlineSeconds=100,
        backoffLimit=1,
        failurePolicy={"rules": [_RULE]},
        checkpoint={"claimName": "disk", "mountPath": "/ckpt"},
        etcd={"image": "e:1", "tls": {"secretName": "s"}, "auth": {"secretName": "t"}},
        worker={
            "restartPolicy": "Always",
            "template": {
                "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                "spec": {
                    "terminationGracePeriodSeconds": 60,
                    "containers": [{"name": "main", "image": "i:1"}],
                    "initContainers": [{"name": "first", "image": "i:2"}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            },
        },
    ),
    command=["elastic-run"],
    args=["train.py"],
    env=[{"name": "A", "value": "b"}],
    volumeMounts=[{"name": "v", "mountPath": "/v"}],
)
