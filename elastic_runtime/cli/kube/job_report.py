"""What an ElasticJob, its pods and its events say, in people's words: pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.manifests import (
    ATTEMPT_LABEL,
    COMPONENT_LABEL,
    INDEX_LABEL,
    etcd_name,
)
from elastic_runtime.controller.spec.job_spec import CONTAINER, KIND, WORKER
from elastic_runtime.kubernetes.api_times import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_runtime.cli.kube.job_client import Object

# The state of a job.
UNSEEN = "unseen"  # no controller has said anything about it
PENDING = "pending"
RUNNING = "running"
RESTARTING = "restarting"
SUSPENDED = "suspended"
SUCCEEDED = "succeeded"
FAILED = "failed"
DELETING = "deleting"

# Whichever of these conditions holds first tells most about the job.
_BY_CONDITION = {
    "Failed": FAILED,
    "Succeeded": SUCCEEDED,
    "Suspended": SUSPENDED,
    "Restarting": RESTARTING,
    "Running": RUNNING,
    "Created": PENDING,
}
# The index, and in a queue what tells the pod from the one before (``quota_groups.member_name``).
_INDEX = re.compile(r"(\d+)(?:-[0-9a-z]{8})?")
_OVER = (FAILED, SUCCEEDED)
_LAST = 10**9  # the job's etcd has no index: after all workers


@dataclass(frozen=True)
class Condition:
    """One condition of a job, as the controller has written it.

    Attributes:
        type, status, reason, message: Kubernetes' words.
        since: seconds since 1970; 0: unknown.
    """

    type: str
    status: str
    reason: str
    message: str
    since: float


@dataclass(frozen=True)
class PodLine:
    """One pod as people see it.

    Attributes:
        name: its whole name.
        role: ``worker`` or ``etcd``.
        index: of the worker; -1 for others.
        state: ``running``, ``Evicted``, ``exit code 1``, …
        detail: why it is so, in the cluster's words.
        ready: it is ready.
        attempt: which start of the whole job it belongs to.
        node, address: where it is.
        created: seconds since 1970.
    """

    name: str
    role: str
    index: int
    state: str
    detail: str
    ready: bool
    attempt: int
    node: str
    address: str
    created: float


@dataclass(frozen=True)
class EventLine:
    """One event about a job or one of its pods."""

    at: float
    type: str
    reason: str
    object: str
    message: str
    count: int


@dataclass(frozen=True)
class JobLine:
    """One job in a list: its state, and the printer columns of the resource.

    Attributes:
        name, namespace: which one.
        state: one of the states above.
        why: the message of the condition that the state comes from.
        desired, ready: pods.
        world, round, step: of the round that trains; None: unknown.
        goodput: the share of the time in which steps advanced that count; "": unknown.
        fault: what went wrong last; "": nothing has.
        restarts: those that were not planned.
        created: seconds since 1970.
        behind: the spec has changed, and the status does not know it yet.
    """

    name: str
    namespace: str
    state: str
    why: str
    desired: int
    ready: int
    world: int | None
    round: int | None
    step: int | None
    restarts: int
    created: float
    behind: bool
    goodput: str = ""
    fault: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more is to come of this job."""
        return self.state in _OVER


@dataclass(frozen=True)
class JobReport:
    """What ``elasticctl status JOB`` shows; ``as_dict`` is its ``--format json``.

    Attributes:
        line: what a list shows as well.
        bounds: fewest and most pods that train.
        image: of the workers.
        args: what they run.
        checkpoint_step: of the last checkpoint; None: unknown.
        restarts: by class.
        attempt: how often the whole job was started again.
        started, ended: seconds since 1970; 0: not yet.
        conditions: in the order of the status.
        pods: workers by index, then the etcd.
        events: the oldest first.
        notes: what could not be read.
    """

    line: JobLine
    bounds: tuple[int, int]
    image: str
    args: tuple[str, ...]
    checkpoint_step: int | None
    restarts: Mapping[str, int]
    attempt: int
    started: float
    ended: float
    conditions: tuple[Condition, ...]
    pods: tuple[PodLine, ...]
    events: tuple[EventLine, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        return {**plain.pop("line"), **plain}


def job_line(job: Object) -> JobLine:
    """What a list shows of a job."""
    metadata, spec, status = job["metadata"], _part(job, "spec"), _part(job, "status")
    state, why = _state(job)
    generation = metadata.get("generation") or 0
    return JobLine(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        state=state,
        why=why,
        desired=replicas(spec),
        ready=_part(_part(status, "replicaStatuses"), WORKER).get("ready") or 0,
        world=status.get("worldSize"),
        round=status.get("round"),
        step=status.get("step"),
        restarts=status.get("restartCount") or 0,
        created=parse_time(metadata.get("creationTimestamp")),
        behind=(status.get("observedGeneration") or 0) < generation,
        goodput=str(status.get("goodput") or ""),
        fault=str(status.get("lastFault") or ""),
    )


def job_report(
    job: Object, pods: Iterable[Object], events: Iterable[Object], notes: Sequence[str] = ()
) -> JobReport:
    """What is known of a job.

    Args:
        job: the ElasticJob.
        pods: its pods.
        events: of the job and of pods in its namespace, also of others.
        notes: what could not be read.
    """
    spec, status = _part(job, "spec"), _part(job, "status")
    container = worker_container(pod_template(job))
    return JobReport(
        line=job_line(job),
        bounds=bounds(spec),
        image=container.get("image", ""),
        args=tuple(str(arg) for arg in container.get("args") or ()),
        checkpoint_step=status.get("lastCheckpointStep"),
        restarts=dict(_part(status, "restarts")),
        attempt=status.get("attempt") or 0,
        started=parse_time(status.get("startTime")),
        ended=parse_time(status.get("completionTime")),
        conditions=tuple(_condition(one) for one in status.get("conditions") or ()),
        pods=tuple(sorted(map(pod_line, pods), key=lambda pod: (pod.index % _LAST, pod.name))),
        events=event_lines(job, events),
        notes=tuple(notes),
    )


def replicas(spec: Object) -> int:
    """How many pods are asked for. Unlike ``JobSpec``, this reads what is wrong as well."""
    return _worker(spec).get("replicas") or spec.get("minReplicas") or 1


def bounds(spec: Object) -> tuple[int, int]:
    """Fewest and most pods that train."""
    size = replicas(spec)
    return spec.get("minReplicas") or size, spec.get("maxReplicas") or size


def pod_template(job: Object) -> Object:
    """What pods are made from; {} if there is nothing."""
    return _part(_worker(_part(job, "spec")), "template")


def worker_container(template: Object) -> Object:
    """The container of a pod, or of a template of pods, that trains; {} if there is none."""
    containers = _part(template, "spec").get("containers") or [{}]
    chosen: Object = next((c for c in containers if c.get("name") == CONTAINER), containers[0])
    return chosen


def pod_line(pod: Object) -> PodLine:
    """What people see of a pod."""
    metadata, spec, status = pod["metadata"], _part(pod, "spec"), _part(pod, "status")
    labels = metadata.get("labels") or {}
    index = str(labels.get(INDEX_LABEL, ""))
    state, detail = _pod_state(pod)
    ready = any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )
    attempt = str(labels.get(ATTEMPT_LABEL, ""))
    return PodLine(
        name=metadata["name"],
        role="worker" if index.isdigit() else labels.get(COMPONENT_LABEL, ""),
        index=int(index) if index.isdigit() else -1,
        state=state,
        detail=detail,
        ready=ready,
        attempt=int(attempt) if attempt.isdigit() else 0,
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        created=parse_time(metadata.get("creationTimestamp")),
    )


def container_state(pod: Object) -> Object:
    """``state`` of the container that trains: waiting, running or terminated; {}: not known."""
    name = worker_container(pod).get("name")
    for one in _part(pod, "status").get("containerStatuses") or ():
        if one.get("name") == name:
            return _part(one, "state")
    return {}


def event_lines(job: Object, events: Iterable[Object]) -> tuple[EventLine, ...]:
    """The events that are about this job or its pods, the oldest first.

    Events outlive what they are about: those of an older job of the same name are left out.
    """
    name, uid = job["metadata"]["name"], job["metadata"].get("uid", "")
    born = parse_time(job["metadata"].get("creationTimestamp"))
    found = []
    for event in events:
        about = _part(event, "involvedObject")
        line = _event(event, about)
        if about.get("kind") == KIND:
            ours = about.get("name") == name and about.get("uid", uid) == uid
        else:
            ours = _is_pod_of(name, about.get("name", "")) and line.at >= born
        if ours:
            found.append(line)
    return tuple(sorted(found, key=lambda line: line.at))


def _state(job: Object) -> tuple[str, str]:
    conditions = {one.get("type"): one for one in _part(job, "status").get("conditions") or ()}
    if job["metadata"].get("deletionTimestamp"):
        return DELETING, ""
    for type_, state in _BY_CONDITION.items():
        if _part(conditions, type_).get("status") == "True":
            # Why it does not run says more than that it is there, or starts again.
            waits = state in (PENDING, RESTARTING)
            waits = waits and _part(conditions, "Running").get("status") == "False"
            chosen = _part(conditions, "Running" if waits else type_)
            return state, chosen.get("message") or chosen.get("reason") or ""
    if refused := conditions.get("Created"):  # its spec cannot be read
        return PENDING, refused.get("message") or refused.get("reason") or ""
    return UNSEEN, ""


def _condition(one: Object) -> Condition:
    return Condition(
        type=one.get("type", ""),
        status=one.get("status", ""),
        reason=one.get("reason", ""),
        message=one.get("message", ""),
        since=parse_time(one.get("lastTransitionTime")),
    )


def _pod_state(pod: Object) -> tuple[str, str]:
    """What a pod is doing, and why, as near to its container as the cluster says it."""
    status = _part(pod, "status")
    state, phase = container_state(pod), status.get("phase") or "Pending"
    ended, waiting = _part(state, "terminated"), _part(state, "waiting")
    code = ended.get("exitCode")
    if ended and phase != "Succeeded":
        reason = ended.get("reason", "")
        detail = status.get("reason") or (reason if reason not in ("Error", "Completed") else "")
        return f"exit code {code}", detail
    if phase == "Failed":
        return status.get("reason") or "failed", status.get("message", "")
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving", ""
    if waiting.get("reason"):
        return waiting["reason"], waiting.get("message", "")
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return "not placed", one.get("message", "")
    return phase.lower(), ""


def worker_index(job: str, name: str) -> int | None:
    """Which worker a pod's name is of; None if of none. In a queue it ends with a suffix.

    Args:
        job: the name of its job.
        name: of the pod.
    """
    if not name.startswith(prefix := f"{job}-worker-"):
        return None
    found = _INDEX.fullmatch(name.removeprefix(prefix))
    return int(found[1]) if found else None


def _is_pod_of(job: str, name: str) -> bool:
    return worker_index(job, name) is not None or name == etcd_name(job)


def _event(event: Object, about: Object) -> EventLine:
    series = _part(event, "series")
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        event["metadata"].get("creationTimestamp"),
    )
    return EventLine(
        at=next((at for at in map(parse_time, times) if at), 0.0),
        type=event.get("type") or "Normal",
        reason=event.get("reason") or "",
        object=about.get("name", ""),
        message=(event.get("message") or "").strip(),
        count=series.get("count") or event.get("count") or 1,
    )


def _worker(spec: Object) -> Object:
    return _part(_part(spec, "replicaSpecs"), WORKER)


def _part(whole: Object, key: str) -> Object:
    """A part of an object, {} if it is absent or null."""
    return whole.get(key) or {}
