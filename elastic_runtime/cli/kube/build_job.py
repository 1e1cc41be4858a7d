"""``elasticctl submit``: from flags, or a file, to an ElasticJob. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.kube.job_fields import check_fields
from elastic_runtime.controller.spec.job_spec import (
    API_GROUP,
    CONTAINER,
    KIND,
    LONGEST_NAME,
    VERSION,
    WORKER,
    JobSpec,
)
from elastic_runtime.controller.spec.scheduling_spec import ignored_queue
from elastic_runtime.errors import UsageError
from elastic_runtime.kubernetes.cluster_access import need
from elastic_runtime.kubernetes.pod_merge import merge_pod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_runtime.cli.kube.job_client import Object

GPU = "nvidia.com/gpu"

_API_VERSION = f"{API_GROUP}/{VERSION}"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CPU = re.compile(r"\d+m|\d+(\.\d+)?")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTPE]i?|k|m)?")
# From which people come.
_OTHERS = ("PyTorchJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
_SUFFIX = 10  # characters of a name that are left for what follows its stem


@dataclass(frozen=True)
class Submission:
    """What was asked for with flags; None, "" and () mean that it was not said.

    Attributes:
        script: a path in the image, or a module.
        image: what the workers run; its entry point is ``elastic-run``.
        name: of the job.
        namespace: of the job.
        args: the script's.
        module: ``script`` is a module.
        low, high, replicas: bounds and size, in pods.
        nproc: workers in each pod.
        gpus, cpu, memory: what each pod gets.
        env: variables, ``NAME=VALUE``.
        checkpoint: a claim or a URL.
        spares: pods beyond the maximum.
        max_restarts: failures of the script after which it is restarted.
        endpoint: an etcd that is there already.
        queue: of Kueue, whose quota the pods need.
        pod_spec: a pod template that is merged into what follows from the rest.
    """

    script: str
    image: str
    name: str
    namespace: str = ""
    args: Sequence[str] = ()
    module: bool = False
    low: int | None = None
    high: int | None = None
    replicas: int | None = None
    nproc: str = ""
    gpus: int | None = None
    cpu: str = ""
    memory: str = ""
    env: Sequence[str] = ()
    checkpoint: str = ""
    spares: int | None = None
    max_restarts: int | None = None
    endpoint: str = ""
    queue: str = ""
    pod_spec: Mapping[str, Any] = field(default_factory=dict)


def make_job(asked: Submission) -> Object:
    """Makes the object; most of what was not said is left to the custom resource's defaults.

    Raises:
        UsageError: a flag is wrong.
        InvalidSpec: flags that are right by themselves do not go together.
    """
    low = 1 if asked.low is None else asked.low
    high = max(low, asked.replicas or low) if asked.high is None else asked.high
    # An elastic job takes what it can get, and runs with less.
    size = high if asked.replicas is None else asked.replicas
    said: dict[str, Any] = {
        "minReplicas": low,
        "maxReplicas": high,
        # One process for each GPU, unless it is said otherwise.
        "nprocPerNode": int(asked.nproc) if asked.nproc.isdigit() else asked.nproc or asked.gpus,
        "spares": asked.spares,
        "maxRestarts": asked.max_restarts,
        "rdzvEndpoint": asked.endpoint or None,
        "checkpoint": _checkpoint(asked.checkpoint),
        "scheduling": {"queue": asked.queue} if asked.queue else None,
    }
    worker = {"replicas": size, "template": merge_pod({"spec": _pod(asked)}, asked.pod_spec)}
    return checked_job(
        {
            "apiVersion": _API_VERSION,
            "kind": KIND,
            "metadata": _given({"name": asked.name, "namespace": asked.namespace or None}),
            "spec": {**_given(said), "replicaSpecs": {WORKER: worker}},
        }
    )


def checked_job(job: Object) -> Object:
    """The job itself, if it can be done.

    Raises:
        InvalidSpec: a field of it cannot be what it says.
    """
    spec = JobSpec.of(job)
    if ignored := ignored_queue(job["metadata"], spec.scheduling):
        raise ignored
    return job


def name_after(script: str, suffix: str, module: bool = False) -> str:
    """A name for a job that was given none.

    Args:
        script: a path or a module; its last part is the first part of the name.
        suffix: tells the jobs of one script apart.
        module: which of the two it is.
    """
    last = script.rpartition("." if module else "/")[2].removesuffix(".py")
    stem = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")
    if not stem[:1].isalpha():
        stem = f"job-{stem}"
    return f"{stem[: LONGEST_NAME - _SUFFIX].strip('-')}-{suffix}"


def parse_pod(text: str, where: str) -> Object:
    """Reads what else a pod has: its fields, or a template with ``spec`` and perhaps ``metadata``.

    Args:
        text: YAML or JSON.
        where: it comes from, for messages.

    Returns:
        A template.

    Raises:
        UsageError: it is neither.
    """
    documents = _documents(text, where)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise UsageError(f"{where} is to hold one object: what stands under spec: of a pod")
    [given] = documents
    if "spec" not in given:
        return {"spec": given}
    if unknown := given.keys() - {"apiVersion", "kind", "metadata", "spec"}:
        raise UsageError(f"{where} has a spec, so that {min(unknown)!r} beside it has no meaning")
    return {name: given[name] for name in ("metadata", "spec") if given.get(name) is not None}


def parse_job(text: str, where: str, namespace: str = "") -> Object:
    """Reads the manifest of one ElasticJob.

    Args:
        text: YAML or JSON.
        where: it comes from, for messages.
        namespace: the one that it is to have; "" leaves it as it is.

    Raises:
        UsageError: it is not an ElasticJob, or not one only.
        InvalidSpec: a field of it is unknown, or cannot be what it says.
    """
    documents = _documents(text, where)
    if not documents:
        raise UsageError(f"{where} is empty: submit takes the manifest of one ElasticJob")
    if len(documents) != 1:
        raise UsageError(
            f"{where} holds {len(documents)} documents: submit takes one ElasticJob; kubectl apply "
            "takes the rest"
        )
    job = documents[0]
    if not isinstance(job, dict) or job.get("kind") != KIND:
        kind = job.get("kind") if isinstance(job, dict) else type(job).__name__
        more = "; docs/kubernetes-migration.md says what becomes of it" if kind in _OTHERS else ""
        raise UsageError(f"{where} holds no ElasticJob (its kind is {kind!r}){more}")
    if job.get("apiVersion") != _API_VERSION:
        raise UsageError(
            f"{where}: apiVersion is {job.get('apiVersion')!r}; here {_API_VERSION} is known"
        )
    metadata = job.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise UsageError(f"{where}: metadata.name is missing: how is the job to be called?")
    if namespace and metadata.get("namespace", namespace) != namespace:
        raise UsageError(
            f"{where} is for the namespace {metadata['namespace']!r}, -n says {namespace!r}: "
            "leave one of them out"
        )
    check_fields(job)
    if namespace:
        job = {**job, "metadata": {**metadata, "namespace": namespace}}
    return checked_job(job)


def _documents(text: str, where: str) -> list[Any]:
    yaml = need("yaml")
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise UsageError(f"{where} is not YAML: {' '.join(str(error).split())}") from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _checkpoint(place: str) -> dict[str, str] | None:
    if not place:
        return None
    if "://" in place:
        return {"url": place}
    if "/" in place:
        raise UsageError(
            f"--checkpoint {place!r} is a path: give the name of a PersistentVolumeClaim, which is "
            "mounted at /checkpoints, or a URL such as s3://bucket/run"
        )
    return {"claimName": place}


def _pod(asked: Submission) -> dict[str, Any]:
    """The pod of a job: what a namespace demands that admits only ``restricted`` pods.

    https://kubernetes.io/docs/concepts/security/pod-security-standards
    """
    return {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(asked)],
    }


def _container(asked: Submission) -> dict[str, Any]:
    if asked.script.startswith("-"):
        raise UsageError(f"{asked.script!r} is no script: options of submit come before the --")
    entry = ["-m", asked.script] if asked.module else [asked.script]
    return _given(
        {
            "name": CONTAINER,
            "image": asked.image,
            "args": [*entry, *asked.args],
            "env": [_variable(text) for text in asked.env] or None,
            "resources": _resources(asked),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    )


def _variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise UsageError(f"--env {text!r} is not NAME=VALUE")
    return {"name": name, "value": value}


def _resources(asked: Submission) -> dict[str, Any] | None:
    for flag, value, form in (("cpu", asked.cpu, _CPU), ("memory", asked.memory, _MEMORY)):
        if value and not form.fullmatch(value):
            example = "2 or 500m" if flag == "cpu" else "8Gi or 500Mi"
            raise UsageError(f"--{flag} {value!r} is not an amount such as {example}")
    requests = {"cpu": asked.cpu or None, "memory": asked.memory or None}
    # A pod that takes more memory than it asked for endangers its neighbours; with processor time
    # it only uses what is free.
    limits = {"memory": asked.memory or None, GPU: str(asked.gpus) if asked.gpus else None}
    return _given({"requests": _given(requests) or None, "limits": _given(limits) or None}) or None
