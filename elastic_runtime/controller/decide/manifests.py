"""What a job is made of in the cluster: the manifests, from its spec alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide import node_topology
from elastic_runtime.controller.decide.groups.gang_groups import join_gang
from elastic_runtime.controller.decide.groups.quota_groups import (
    member_metadata,
    member_name,
    pod_labels,
)
from elastic_runtime.controller.spec.job_spec import API_GROUP, KIND, VERSION, JobSpec
from elastic_runtime.controller.spec.scheduling_spec import Scheduling
from elastic_runtime.defaults import ETCD_PORT
from elastic_runtime.reporting.last_words import ENV_LAST_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_runtime.controller.decide.job_types import Json

METRICS_PORT = 9404
# The classic controller's Services had this port; some sidecars and policies know it.
CLASSIC_PORT = 10291

JOB_LABEL = "job-name"
INDEX_LABEL = "replica-index"
TYPE_LABEL = "replica-type"
GROUP_LABEL = "group-name"
ATTEMPT_LABEL = f"{API_GROUP}/attempt"
TEMPLATE_ANNOTATION = f"{API_GROUP}/template"
SETTINGS_ANNOTATION = f"{API_GROUP}/settings"
COMPONENT_LABEL = "app.kubernetes.io/component"

_TLS_PATH = "/etc/elastic/etcd-tls"
_TLS_VOLUME, _CHECKPOINT_VOLUME, _SHM_VOLUME = "elastic-etcd-tls", "elastic-checkpoint", "dshm"
_TMP_VOLUME = "elastic-tmp"
# Kubernetes' own, for a container that says nothing.
_TERMINATION_LOG = "/dev/termination-log"
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
# Kubernetes' own, for a template that says nothing.
_DEFAULT_GRACE = 30
# Between the agent's last word and the kubelet's SIGKILL.
_GOODBYE = 5


# ---------------------------------------------------------------- names


def pod_name(job: str, index: int) -> str:
    """The name of a worker pod."""
    return f"{job}-worker-{index}"


def etcd_name(job: str) -> str:
    """The name of the job's own etcd, of its pod and of its Service."""
    return f"{job}-etcd"


def selector(job: str) -> dict[str, str]:
    """The labels that all worker pods of a job have, and nothing else has."""
    return {JOB_LABEL: job, TYPE_LABEL: "worker"}


def labels(job: str, component: str) -> dict[str, str]:
    """The labels of everything that belongs to a job."""
    return {
        GROUP_LABEL: API_GROUP,
        JOB_LABEL: job,
        TYPE_LABEL: component,
        "app.kubernetes.io/name": "elasticjob",
        "app.kubernetes.io/instance": job,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": "elastic-runtime",
        "app.kubernetes.io/part-of": "elastic-runtime",
    }


def owned_metadata(spec: JobSpec, name: str, component: str) -> dict[str, Any]:
    """The metadata of an object that belongs to a job, and is deleted with it."""
    return {
        "name": name,
        "namespace": spec.namespace,
        "labels": labels(spec.name, component),
        "ownerReferences": [
            {
                "apiVersion": f"{API_GROUP}/{VERSION}",
                "kind": KIND,
                "name": spec.name,
                "uid": spec.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


# ---------------------------------------------------------------- the store


def etcd_endpoint(spec: JobSpec, services: Mapping[str, str]) -> str:
    """Where the workers meet; "" while that is not known yet.

    The address of the job's own etcd is its Service's IP, not its name: an address needs no DNS,
    and stays when the pod behind it is replaced.
    """
    if spec.endpoint:
        return spec.endpoint
    address = services.get(etcd_name(spec.name), "")
    if not address or address == "None":
        return ""
    return f"[{address}]:{ETCD_PORT}" if ":" in address else f"{address}:{ETCD_PORT}"


def backend(spec: JobSpec) -> str:
    """What to call the store's protocol in front of the workers.

    An endpoint of the user's is called ``etcd``, as ever: each launcher takes that for the API it
    speaks. The job's own etcd has API v3 only.
    """
    return spec.backend or ("etcd" if spec.endpoint else "etcd-v3")


# ---------------------------------------------------------------- around the workers


def worker_service(spec: JobSpec) -> Json:
    """The headless Service, which gives the worker pods their names in DNS."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(spec, spec.name, "worker"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(spec.name),
            "ports": [
                {"name": "metrics", "port": METRICS_PORT},
                {"name": "elasticjob-port", "port": CLASSIC_PORT},
            ],
        },
    }


def disruption_budget(spec: JobSpec) -> Json:
    """The PodDisruptionBudget: a drained node never takes the job below its minimum."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(spec, spec.name, "worker"),
        "spec": {
            "minAvailable": spec.minimum,
            "selector": {"matchLabels": selector(spec.name)},
            # A pod that is not ready does not train: nothing is lost when it moves.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


# ---------------------------------------------------------------- a worker


def worker_pod(
    spec: JobSpec,
    index: int,
    attempt: int,
    endpoint: str,
    bounds: tuple[int, int],
    life: int = 0,
    resuming: bool = False,
    group: str = "",
    gang: tuple[str, ...] = (),
) -> Json:
    """One worker pod.

    Args:
        spec: the job.
        index: of the replica.
        attempt: which start of the whole job it is for.
        endpoint: where the workers meet.
        bounds: fewest and most nodes, as this attempt was launched with. Agents that say different
            bounds take each other for different jobs.
        life: grows with each pod of this name. A pod is made when the one before is gone, so its
            agent tells the others not to wait for that one.
        resuming: other pods may be training in a round of this attempt: should etcd have lost its
            memory, the agent waits for them.
        group: of Kueue that it belongs to; "": none.
        gang: whose PodGroup it belongs to, and its name; empty: none.
    """
    name = pod_name(spec.name, index)
    pod = {**spec.template["spec"], "restartPolicy": "Never"}
    if spec.priority_class:
        pod.setdefault("priorityClassName", spec.priority_class)
    # A name in DNS needs both, though the host name would be the same without being said.
    pod.setdefault("hostname", name)
    pod.setdefault("subdomain", spec.name)
    # Variables for Services, of which there may be hundreds, could be taken for settings.
    pod.setdefault("enableServiceLinks", False)
    containers = list(pod["containers"])
    worker = dict(containers[spec.container])
    _add_args(worker, _launch_args(spec, attempt, endpoint, bounds))
    environment = _environment(spec, name, attempt, endpoint, bounds, _grace(pod), life)
    if resuming:
        environment.append({"name": "ELASTIC_RESUMING", "value": "1"})
    # An image that writes no last words has its log.
    worker.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    path = worker.get("terminationMessagePath") or _TERMINATION_LOG
    environment.append({"name": ENV_LAST_WORDS, "value": path})
    environment += node_topology.pod_variables(spec)
    _add_env(worker, environment)
    _add_volumes(spec, pod, worker)
    containers[spec.container] = worker
    pod["containers"] = containers
    metadata = _pod_metadata(spec, name, index, attempt)
    _queue(spec, index, bounds[0], group, life, metadata)
    join_gang(spec, gang, index >= bounds[0], metadata, pod)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _pod_metadata(spec: JobSpec, name: str, index: int, attempt: int) -> dict[str, Any]:
    given = spec.template.get("metadata") or {}
    metadata = owned_metadata(spec, name, "worker")
    metadata["labels"] = {
        **(given.get("labels") or {}),
        **metadata["labels"],
        INDEX_LABEL: str(index),
        ATTEMPT_LABEL: str(attempt),
    }
    metadata["annotations"] = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
        **node_topology.pod_annotations(spec),
        **(given.get("annotations") or {}),
        TEMPLATE_ANNOTATION: template_mark(spec),
        SETTINGS_ANNOTATION: settings_mark(spec),
    }
    return metadata


def _queue(
    spec: JobSpec, index: int, minimum: int, group: str, life: int, metadata: dict[str, Any]
) -> None:
    """Has a pod wait for quota, alone or with its group, if the job asks for it."""
    member = member_metadata(group, minimum)
    metadata["labels"] |= {**pod_labels(spec, index, minimum), **member["labels"]}
    metadata["annotations"] |= member["annotations"]
    if group:
        metadata["name"] = member_name(metadata["name"], life)


def template_mark(spec: JobSpec) -> str:
    """Tells templates apart, so that a pod shows which one it was made from."""
    return _mark(spec.template)


def settings_mark(spec: JobSpec) -> str:
    """Tells apart what else of a spec goes into its pods; the bounds do not count.

    Those hold for a whole attempt, as agents that say different ones do not meet.
    """
    place = spec.checkpoint and (spec.checkpoint.claim, spec.checkpoint.place)
    secrets = sorted(spec.secrets.items())
    settings = [spec.nproc, spec.max_restarts, place, secrets, spec.priority_class]
    # Only where it is set: pods of a controller that did not know it are of no older spec.
    asked = spec.scheduling
    return _mark([*settings, *([astuple(asked)] if asked != Scheduling() else [])])


def _mark(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _grace(pod: Mapping[str, Any]) -> int:
    given = pod.get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE if given is None else int(given)


def _launch_args(
    spec: JobSpec, attempt: int, endpoint: str, bounds: tuple[int, int]
) -> tuple[str, ...]:
    """What the classic controller put in front of the container's arguments."""
    # A URL says itself what it is.
    store = () if "://" in endpoint else (f"--rdzv_backend={backend(spec)}",)
    return (
        *store,
        f"--rdzv_endpoint={endpoint}",
        f"--rdzv_id={spec.run_id(attempt)}",
        f"--nnodes={bounds[0]}:{bounds[1]}",
    )


def _add_args(worker: dict[str, Any], launch: Sequence[str]) -> None:
    """Puts the launch arguments first, where they would reach the launcher.

    A command without arguments has its script in the command: behind that they would be the
    script's. A shell would take them for its own. The environment says the same to both.
    """
    command = [str(word) for word in worker.get("command") or ()]
    given = list(worker.get("args") or ())
    shell = bool(command) and command[0].rpartition("/")[2] in _SHELLS
    if shell or (command and not given):
        return
    worker["args"] = [*launch, *given]


def _environment(
    spec: JobSpec,
    name: str,
    attempt: int,
    endpoint: str,
    bounds: tuple[int, int],
    grace: int,
    life: int,
) -> list[dict[str, Any]]:
    plain = {
        "PET_LOCAL_ADDR": "$(POD_IP)",
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_ID": spec.run_id(attempt),
        "PET_NNODES": f"{bounds[0]}:{bounds[1]}",
        "ELASTIC_NODE_NAME": name,
        "ELASTIC_NODE_LIFE": str(life),
        "ELASTIC_METRICS_PORT": str(METRICS_PORT),
        "ELASTIC_METRICS_HOST": "::",  # every address: the controller asks, and port-forward
        "ELASTIC_GRACE": str(max(grace - _GOODBYE, 1)),
    }
    if "://" not in endpoint:
        plain["PET_RDZV_BACKEND"] = backend(spec)
    if spec.nproc:
        plain["PET_NPROC_PER_NODE"] = spec.nproc
    if spec.max_restarts is not None:
        plain["PET_MAX_RESTARTS"] = str(spec.max_restarts)
    if spec.checkpoint:
        plain["ELASTIC_CHECKPOINT"] = spec.checkpoint.place
    if spec.etcd.tls_secret:
        plain["ELASTIC_ETCD_CA"] = f"{_TLS_PATH}/ca.crt"
        plain["ELASTIC_ETCD_CERT"] = f"{_TLS_PATH}/tls.crt"
        plain["ELASTIC_ETCD_KEY"] = f"{_TLS_PATH}/tls.key"
    # Before whatever refers to it.
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    settings = [{"name": name, "value": value} for name, value in plain.items()]
    return [pod_ip, *settings, *_login(spec.etcd.auth_secret)]


def _login(secret: str) -> list[dict[str, Any]]:
    if not secret:
        return []
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for variable, key in (
            ("ELASTIC_ETCD_USER", "username"),
            ("ELASTIC_ETCD_PASSWORD", "password"),
        )
    ]


def _add_env(worker: dict[str, Any], ours: Iterable[dict[str, Any]]) -> None:
    """Adds variables; those that the template sets itself stay as they are."""
    given = list(worker.get("env") or ())
    taken = {each.get("name") for each in given}
    worker["env"] = [*(each for each in ours if each["name"] not in taken), *given]


def _add_volumes(spec: JobSpec, pod: dict[str, Any], worker: dict[str, Any]) -> None:
    """Mounts what the job needs, unless the template has something at that place.

    ``/dev/shm`` is 64 MiB in a container; workers of one pod, loaders of data and snapshots in
    memory need more. What is in it counts against the memory limit of the container. An agent keeps
    its sockets and logs in ``/tmp``, which a read-only root file system does not have.
    """
    wanted: list[tuple[str, str, dict[str, Any], bool]] = [
        (_SHM_VOLUME, "/dev/shm", {"emptyDir": {"medium": "Memory"}}, False)
    ]
    if spec.checkpoint and spec.checkpoint.claim:
        claim = {"persistentVolumeClaim": {"claimName": spec.checkpoint.claim}}
        wanted.append((_CHECKPOINT_VOLUME, spec.checkpoint.mount_path, claim, False))
    if spec.etcd.tls_secret:
        secret = {"secret": {"secretName": spec.etcd.tls_secret}}
        wanted.append((_TLS_VOLUME, _TLS_PATH, secret, True))
    wanted += node_topology.pod_volumes(spec)
    mounts = list(worker.get("volumeMounts") or ())
    volumes = list(pod.get("volumes") or ())
    if (worker.get("securityContext") or {}).get("readOnlyRootFilesystem"):
        wanted.append((_TMP_VOLUME, "/tmp", {"emptyDir": {}}, False))
    names = {each.get("name") for each in volumes}
    paths = {str(each.get("mountPath", "")).rstrip("/") for each in mounts}
    for name, path, source, read_only in wanted:
        if path.rstrip("/") in paths:
            continue
        while name in names:
            name = f"elastic-{name}"
        volumes.append({"name": name, **source})
        mount: dict[str, Any] = {"name": name, "mountPath": path}
        mounts.append({**mount, "readOnly": True} if read_only else mount)
    worker["volumeMounts"], pod["volumes"] = mounts, volumes
