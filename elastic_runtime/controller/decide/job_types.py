"""The words of the controller: what it sees of a job, and what it decides to do about it.

All of it is plain frozen data. ``decision.decide`` makes a ``JobPlan`` of an ElasticJob and an
``Observed``; ``cluster_state.py`` makes the ``Observed``, and ``executor.py`` performs the actions
of the ``JobPlan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_runtime.clock import NEVER

Json = Mapping[str, Any]

PENDING = "Pending"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"

NORMAL = "Normal"
WARNING = "Warning"


# ---------------------------------------------------------------- what is seen


@dataclass(frozen=True, slots=True)
class PodView:
    """What a decision needs of one worker pod.

    Attributes:
        name, index, uid: which one; the index is the label ``replica-index``.
        attempt: which start of the whole job it belongs to (label ``elastic.pytorch.org/attempt``).
        phase: Kubernetes' word; ``Running`` may still be said of a pod whose node is lost.
        ready: its condition Ready.
        deleting: it has a deletion time stamp.
        forced: nobody waits for its end: it was deleted by force, or has ended.
        exit_code: of the worker container, when that has ended; None otherwise.
        reason, message: why the pod ended: of its status (``Evicted``), of its condition
            ``DisruptionTarget`` (``PreemptionByScheduler``) or of the container (``OOMKilled``).
        created_at: when the pod was created, in seconds since 1970; 0: unknown.
        started_at, finished_at: of the worker container, in seconds since 1970; 0: not yet.
        restarts: times that the kubelet has restarted the container.
        waiting_reason, waiting_message: why the container does not start (``ImagePullBackOff``).
        unschedulable: the scheduler's message while it finds no place; "" if it has one.
        unplaced_since: since when that is so, in seconds since 1970; 0: unknown.
        address: the pod's IP; "" while it has none.
        node: where it was placed; "" while it was not.
        template, settings: the marks of the template, and of what else of the spec it was made
            from (annotations ``elastic.pytorch.org/template`` and ``…/settings``).
        gates: what keeps the scheduler from looking at it: Kueue's while it waits for quota.
        group: Kueue's group of pods that it belongs to; "": none.
        held: Kueue's finalizer keeps its object.
        final: Kueue was told that no pod takes its place in the group.
        quota_taken: why Kueue has taken its quota back; "": it has not.
        last_report: what its agent has said last, when it ended.
        topology: what it was told of its node's place; "": nothing yet; None: it does not ask.
    """

    name: str
    index: int
    uid: str
    attempt: int = 0
    phase: str = PENDING
    ready: bool = False
    deleting: bool = False
    forced: bool = False
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    created_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    restarts: int = 0
    waiting_reason: str = ""
    waiting_message: str = ""
    unschedulable: str = ""
    unplaced_since: float = 0.0
    address: str = ""
    node: str = ""
    template: str = ""
    settings: str = ""
    gates: tuple[str, ...] = ()
    group: str = ""
    held: bool = False
    final: bool = False
    quota_taken: str = ""
    last_report: AgentReport | None = None
    topology: str | None = None

    @property
    def ended(self) -> bool:
        """Whether its worker is done; a sidecar may keep the pod itself going."""
        return self.phase in (SUCCEEDED, FAILED) or self.exit_code is not None

    @property
    def runs(self) -> bool:
        """Whether it takes part, or may take part, in training."""
        return self.phase == RUNNING and not self.ended and not self.deleting

    @property
    def lifetime(self) -> float:
        """How long the worker container ran, in seconds; 0 if it never did."""
        return max(self.finished_at - self.started_at, 0.0) if self.started_at else 0.0


@dataclass(frozen=True, slots=True)
class EtcdView:
    """The etcd pod that belongs to the job alone.

    Attributes:
        name, uid, phase, ready, deleting: as of a worker pod.
        waiting_reason, waiting_message: why its container does not start.
        unschedulable, unplaced_since, node, template: as of a worker pod.
        image: what it is to run.
        created_at: in seconds since 1970; 0: unknown.
        unready_since: since when it is not ready, in seconds since 1970; 0: unknown.
    """

    name: str
    uid: str
    phase: str = PENDING
    ready: bool = False
    deleting: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    unschedulable: str = ""
    unplaced_since: float = 0.0
    node: str = ""
    template: str = ""
    image: str = ""
    created_at: float = 0.0
    unready_since: float = 0.0

    @property
    def serves(self) -> bool:
        """Whether it can be reached, and stays."""
        return self.ready and not self.deleting


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What an agent of the job says at ``/status``.

    Attributes:
        run_id: which run it speaks of; that of an older attempt is no news.
        round, world: the round that it is in, and how many workers that has; 0: none.
        step, checkpoint_step: the last step, and the last one in a checkpoint; -1: unknown.
        restarts: how often rounds ended, by ``RESTART_CLASSES``, in this incarnation of the job.
        ready: it is in a round.
        nodes: how many that round has; 0: it does not say.
        goodput: the share of the time in which steps advanced that count, in percent; -1: unknown.
        fault: why the last round that broke did; "": none has, or it does not say.
    """

    run_id: str = ""
    round: int = 0
    world: int = 0
    step: int = -1
    checkpoint_step: int = -1
    restarts: Mapping[str, int] = field(default_factory=dict)
    ready: bool = False
    nodes: int = 0
    goodput: int = -1
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something outside the spec that keeps the job from running.

    The operator finds these where a plan cannot see them: an answer of the API server to an
    earlier action (a quota that forbids pods), a Secret that is missing, another job with the
    same endpoint and run id.

    Attributes:
        reason: one word in CamelCase, for conditions and events: ``QuotaExceeded``.
        message: what happened and what to do.
        field: the field of the spec that it is about; "" if none.
        blocks: no pod may be created while it lasts.
    """

    reason: str
    message: str
    field: str = ""
    blocks: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is seen of one job's surroundings at one moment.

    Attributes:
        pods: its worker pods, those being deleted included.
        services: the cluster IPs of its Services, by name ("None" of a headless one, "" while
            it has none).
        etcd: its own etcd pod, if there is one.
        pdb: ``minAvailable`` of its workers' PodDisruptionBudget; None if there is none.
        etcd_guarded: its etcd has a PodDisruptionBudget.
        report: what its agents say; None if none is in reach.
        problems: what the operator knows to be wrong.
        checked: the mark of the last ``CheckPod`` that was accepted, if it was just now.
        asides: what is wrong, too, and keeps no job from running.
    """

    pods: tuple[PodView, ...] = ()
    services: Mapping[str, str] = field(default_factory=dict)
    etcd: EtcdView | None = None
    pdb: int | None = None
    etcd_guarded: bool = False
    report: AgentReport | None = None
    problems: tuple[Problem, ...] = ()
    checked: str = ""
    asides: tuple[Problem, ...] = ()


# ---------------------------------------------------------------- what is decided


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create this worker pod.

    Attributes:
        index: of the replica.
        manifest: the whole Pod.
        why: for people and the log.
    """

    index: int
    manifest: Json = field(default_factory=dict, repr=False)
    why: str = ""


@dataclass(frozen=True, slots=True)
class CheckPod:
    """Have the API server check a worker pod, strictly, without making it.

    It drops a field that it does not know from a pod that is created, and says so to nobody.

    Attributes:
        manifest: the whole Pod, under a name that no pod has.
        mark: what is found in ``Observed.checked`` if it is accepted.
        why: for people and the log.
    """

    manifest: Json = field(default_factory=dict, repr=False)
    mark: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod (of a worker, or etcd).

    Attributes:
        name, uid: of the pod; the uid is a precondition, so that no younger one is hit.
        grace: seconds between SIGTERM and SIGKILL; None: what the pod says itself.
        why: for people and the log.
    """

    name: str
    uid: str
    grace: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ApplyManifest:
    """Make an object so that is not a worker pod: Service, budget, etcd.

    One that is missing is created, one of the job's is changed by server-side apply.

    Attributes:
        manifest: with ``kind`` and ``metadata.name``.
        why: for people and the log.
    """

    manifest: Json = field(repr=False)
    why: str = ""

    @property
    def kind(self) -> str:
        """As in the manifest."""
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        """As in the manifest."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class PatchPod:
    """Change the metadata of a worker pod.

    Attributes:
        name, uid: of the pod; nothing is done to another one of that name.
        metadata: the change, as a strategic merge patch.
        why: for people and the log.
    """

    name: str
    uid: str
    metadata: Json = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class ApplyPodGroup:
    """Make the object by which a scheduler knows which pods come together.

    Attributes:
        gang: whose, as in ``spec.scheduling.gang``.
        manifest: without ``apiVersion``: the executor knows which ones there may be.
        why: for people and the log.
    """

    gang: str
    manifest: Json = field(default_factory=dict, repr=False)
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete such an object.

    Attributes:
        gang, name: which one.
        why: for people and the log.
    """

    gang: str
    name: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOwned:
    """Delete an object of the job's that is not a pod: ``Service``, ``PodDisruptionBudget``."""

    kind: str
    name: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class NoteTopology:
    """Tell a pod where in the network its node is, in an annotation.

    Attributes:
        name, uid: of the pod; the uid is a precondition.
        node: where it was placed.
        labels: keys of the node's labels, nearest last.
    """

    name: str
    uid: str
    node: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the ElasticJob itself; all that it owns goes with it."""

    why: str = ""


Action = (
    CreatePod
    | CheckPod
    | DeletePod
    | PatchPod
    | ApplyManifest
    | ApplyPodGroup
    | DeletePodGroup
    | DeleteOwned
    | NoteTopology
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event on the ElasticJob.

    Attributes:
        type: ``Normal`` or ``Warning``.
        reason: one word in CamelCase.
        message: for people.
    """

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What is to be done now.

    Attributes:
        actions: in this order; one that fails does not keep the others from being tried.
        status: the whole new status of the job; equal to the old one if nothing changed. A field
            that the old one has and this one lacks is to be removed.
        events: to be emitted after the status is written.
        wake_at: when to decide again at the latest, with nothing seen; ``NEVER``: not needed.
        reason: the decision in a line, for the log.
    """

    actions: tuple[Action, ...] = ()
    status: Json = field(default_factory=dict)
    events: tuple[JobEvent, ...] = ()
    wake_at: float = NEVER
    reason: str = ""
