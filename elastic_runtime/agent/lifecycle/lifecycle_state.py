"""All that an agent knows of its own lifecycle; ``lifecycle_step`` says how it changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from elastic_runtime import defaults
from elastic_runtime.config import Timeouts
from elastic_runtime.protocol.records import PLANNED, FaultReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.agent.lifecycle.hang_detection import HangClock
    from elastic_runtime.agent.lifecycle.lifecycle_types import Action, Finish
    from elastic_runtime.config import JobConfig
    from elastic_runtime.protocol.messages import Heard
    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.system.repeated_signals import StopRequest


class Phase(Enum):
    """Where an agent is; ``lifecycle_step`` draws how one phase follows another."""

    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    ENDED = "ended"


class AfterRound(Enum):
    """What an agent does once none of its workers is in the round."""

    REJOIN = "rejoin"
    JOIN_AS_NEW = "join as a new node"
    LEAVE = "leave"
    END = "end"


class WorkerPhase(Enum):
    """Where a worker is that keeps its process; ``in_place_lifecycle`` draws it."""

    STARTING = "on its way to elastic.run"
    READY = "ready for a round"
    IN_ROUND = "in the round"
    RETURNED = "train has returned"


@dataclass(frozen=True, slots=True)
class InPlaceWorker:
    """One worker that keeps its process.

    Attributes:
        phase: where it is.
        since: the first round that it took part in; a worker keeps its place before younger ones.
    """

    phase: WorkerPhase = WorkerPhase.STARTING
    since: int = 1 << 62


@dataclass(frozen=True, slots=True)
class HangInquiry:
    """What is known of workers that make no progress; see ``hang_detection``.

    Attributes:
        clock: how long the present step takes; None: the agent has not looked yet.
        asking: workers were asked where they are.
        asked_at: when they were last asked, in seconds on the monotonic clock.
        answers: what they have said since then, by local rank.
        overdue: for how many seconds workers that do not leave a broken round have made no step, if
            that is a hang; else 0.0.
        surveyed_at: when the other members of the round were last found to be in reach.
        busy_at: when one of them last had a worker that was busy with something else.
        no_step_reported: it was reported that ``train`` runs without any step.
    """

    clock: HangClock | None = None
    asking: bool = False
    asked_at: float = float("-inf")
    answers: Mapping[int, Heard] = field(default_factory=dict)
    overdue: float = 0.0
    surveyed_at: float = float("-inf")
    busy_at: float = float("-inf")
    no_step_reported: bool = False


@dataclass(frozen=True, slots=True)
class InPlace:
    """What is known in addition of a job whose workers keep their process.

    Attributes:
        workers: each worker that has a process, by local rank.
        registered: this node has joined the rendezvous.
        promised_to_stay: this node said that it stays when all ranks agreed to leave the round.
        leaving_known: all ranks knew that this node goes when they agreed to leave the round.
        waiting_since: since when it waits to go, once it was asked to.
        interrupted_at: when the workers were ordered to leave the round at once; None: they were
            not.
        trained: the last round in which ``train`` has returned on all ranks; 0: none.
        start_failures: how many workers in a row ended before they came to ``elastic.run``.
        inquiry: into what keeps workers from making steps.
    """

    workers: Mapping[int, InPlaceWorker] = field(default_factory=dict)
    registered: bool = True
    promised_to_stay: bool = False
    leaving_known: bool = False
    waiting_since: float = 0.0
    interrupted_at: float | None = None
    trained: int = 0
    start_failures: int = 0
    inquiry: HangInquiry = HangInquiry()

    def ranks_in(self, *phases: WorkerPhase) -> tuple[int, ...]:
        """The local ranks of the workers in one of these phases, the oldest first."""
        found = [rank for rank, worker in self.workers.items() if worker.phase in phases]
        return tuple(sorted(found, key=lambda rank: (self.workers[rank].since, rank)))

    def without(self, local_rank: int) -> InPlace:
        """After the end of a worker's process."""
        others = {rank: worker for rank, worker in self.workers.items() if rank != local_rank}
        return replace(self, workers=others)


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """What the lifecycle of an agent depends on.

    Attributes:
        workers: on this node.
        min_workers: in place, how many of them are enough for the node to go on.
        max_restarts: only shown to people: the leader's budget decides.
        timeouts: the job's.
        look_for_stuck: seconds that workers have to leave a round, before they are asked where
            they are.
        patient: a further signal does not hurry a node that leaves, SIGINT apart.
    """

    workers: int
    min_workers: int = defaults.MIN_WORKERS
    max_restarts: int = defaults.MAX_RESTARTS
    timeouts: Timeouts = field(default_factory=Timeouts)
    look_for_stuck: float = defaults.LOOK_FOR_STUCK
    patient: bool = False

    @classmethod
    def of(cls, config: JobConfig) -> LifecycleSettings:
        """The lifecycle's part of a job's settings."""
        return cls(
            config.workers,
            config.min_workers,
            config.max_restarts,
            config.timeouts,
            patient=config.patient,
        )


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What has happened in the round that runs, or ran last; a new round begins without any.

    Attributes:
        faults: the unwanted ends of workers so far.
        leave_reason: why the round is left if no worker failed.
        leaving: the workers were asked to leave at a step boundary.
        left_at_step: some worker has done so.
        stop_ordered: the workers were ordered to end, so that no failure of theirs counts from then
            on.
    """

    faults: tuple[FaultReport, ...] = ()
    leave_reason: FaultReport | None = None
    leaving: bool = False
    left_at_step: bool = False
    stop_ordered: bool = False


@dataclass(frozen=True, slots=True)
class AgentState:
    """All that an agent knows about itself.

    Attributes:
        settings: what it was started with.
        phase: where it is.
        after_round: what follows ``STOPPING``.
        round: the round that runs, or ran last.
        group_rank: this node's rank in it.
        facts: what has happened in it.
        alive: local ranks whose workers have not ended.
        can_leave: those of them that can leave at a step boundary.
        fork_server_ready: workers can be started.
        fork_server_deaths: how often in a row it died before it was ready.
        store_answered: at least once.
        leave_request: the signal that asked this node to leave.
        finish: what to end with.
        in_place: the script has come to ``elastic.run``, or the job is known to; None: it has not,
            and workers are started again for each round.
    """

    settings: LifecycleSettings
    phase: Phase = Phase.STARTING
    after_round: AfterRound = AfterRound.REJOIN
    round: RoundRecord | None = None
    group_rank: int = 0
    facts: RoundFacts = RoundFacts()
    alive: frozenset[int] = frozenset()
    can_leave: frozenset[int] = frozenset()
    fork_server_ready: bool = False
    fork_server_deaths: int = 0
    store_answered: bool = False
    leave_request: StopRequest | None = None
    finish: Finish | None = None
    in_place: InPlace | None = None

    def ranks_in(self, *phases: WorkerPhase) -> tuple[int, ...]:
        """In place, the local ranks of the workers in one of these phases, the oldest first."""
        return self.in_place.ranks_in(*phases) if self.in_place else ()

    def require_in_place(self) -> InPlace:
        """``in_place``, for what happens only there."""
        assert self.in_place is not None
        return self.in_place

    def with_fault(self, fault: FaultReport) -> AgentState:
        """After one more unwanted end of a worker."""
        facts = replace(self.facts, faults=(*self.facts.faults, fault))
        return replace(self, facts=facts)

    def with_leave_reason(self, reason: FaultReport) -> AgentState:
        """With a reason to leave the round: the first one, or what a planned change gave way to."""
        first = self.facts.leave_reason
        if first is not None and first.kind != PLANNED:
            return self
        return replace(self, facts=replace(self.facts, leave_reason=reason))

    def without_worker(self, local_rank: int) -> AgentState:
        """After the end of a worker's process."""
        ended = {local_rank}
        return replace(
            self,
            alive=self.alive - ended,
            can_leave=self.can_leave - ended,
            in_place=self.in_place.without(local_rank) if self.in_place else None,
        )

    def stopping(self) -> AgentState:
        """Once its workers are ordered to end."""
        facts = replace(self.facts, stop_ordered=True)
        return replace(self, phase=Phase.STOPPING, facts=facts)

    @property
    def available(self) -> int:
        """How many workers can take part in a round now, or do; 0 if they are too few."""
        count = len(self.ranks_in(WorkerPhase.READY, WorkerPhase.IN_ROUND))
        return count if count >= self.settings.min_workers else 0


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from an event."""

    state: AgentState
    actions: tuple[Action, ...] = ()
    reason: str = ""

    def preceded_by(self, *actions: Action) -> Step:
        """The same, with other actions before its own."""
        return replace(self, actions=(*actions, *self.actions))
