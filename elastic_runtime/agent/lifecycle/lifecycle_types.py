"""The words of an agent's life: what can happen, what can be done, and what it knows.

``lifecycle`` says how one follows from the other.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from elastic_runtime import defaults
from elastic_runtime.config import Timeouts
from elastic_runtime.rendezvous.core.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime import events
    from elastic_runtime.config import JobConfig
    from elastic_runtime.protocol.records import FaultReport, OutcomeRecord, RoundRecord
    from elastic_runtime.system.repeated_signals import Request

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The fork server can start workers; ``cold`` says why not warm ones, "" if they are warm."""

    cold: str = ""


@dataclass(frozen=True, slots=True)
class ServerDied:
    """The fork server is gone, and with it all workers; ``refused``: none can be started here."""

    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker has ended, and its whole process group with it.

    Attributes:
        round: the round it was started for.
        local_rank: which one.
        code: exit code, or minus a signal's number.
        drained: it left at a step boundary, as it was asked to.
        fault: what its end means if nobody wanted it; None after exit code 0.
    """

    round: int
    local_rank: int
    code: int
    drained: bool = False
    fault: FaultReport | None = None


@dataclass(frozen=True, slots=True)
class WorkerDrains:
    """Whether a worker can save and leave when asked (it has a checkpointer)."""

    round: int
    local_rank: int
    can: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """A signal asked this agent to leave.

    Attributes:
        signum: which one.
        alone: it is certain that no other node takes part in the job.
        leads: there is no older node, as far as is seen.
        served: the store answers, without which there is no other round.
    """

    signum: int
    alone: bool = False
    leads: bool = False
    served: bool = True


@dataclass(frozen=True, slots=True)
class Alarm:
    """The time set with ``SetAlarm`` has come; the rest as in ``Asked``."""

    alone: bool = False
    leads: bool = False
    served: bool = True


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """In place: a worker's script has come to ``elastic.run``."""

    local_rank: int


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """In place: a worker has taken its part of the round apart, and waits for the next one.

    Attributes:
        local_rank: which one.
        round: the round that it left.
        step: the last step that it holds.
        planned: all ranks left at this step because they agreed to.
        reason: what went wrong, for people.
        released: nobody counts on what it holds, should its node go away.
    """

    local_rank: int
    round: int
    step: int
    planned: bool
    reason: str
    released: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReturned:
    """In place: ``train`` has returned on all ranks of the round, and on this worker."""

    local_rank: int
    round: int


@dataclass(frozen=True, slots=True)
class WorkerHeard:
    """In place: a worker's channel thread says where its main thread is.

    Attributes:
        local_rank: which one.
        collective: it waits for other ranks.
        where: for people.
        busy: what the script says that it does, "" if nothing.
    """

    local_rank: int
    collective: bool
    where: str
    busy: str


@dataclass(frozen=True, slots=True)
class NoProgress:
    """In place: no step was committed for so many ``seconds``; it may take ``limit``."""

    seconds: float
    limit: float


@dataclass(frozen=True, slots=True)
class NoNews:
    """In place: for long, nothing was to be expected of the workers in a round.

    Attributes:
        seconds: for so long.
        where: where they are, for people.
    """

    seconds: float
    where: str


Event = (
    ServerReady
    | ServerDied
    | WorkerExited
    | WorkerDrains
    | WorkerReady
    | WorkerLeft
    | WorkerReturned
    | WorkerHeard
    | NoProgress
    | NoNews
    | Asked
    | Alarm
    | Notice
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start the fork server (again)."""


@dataclass(frozen=True, slots=True)
class SayJoin:
    """Ask to be in the next round, as a new life; in place, with so many workers."""

    workers: int | None = None


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the round's workers."""

    round: RoundRecord
    group_rank: int


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """A signal to workers (to all if none are named), SIGKILL after ``grace`` seconds.

    Those that do not handle ``signum`` get SIGTERM.
    """

    grace: float
    local_ranks: tuple[int, ...] = ()
    signum: int = signal.SIGTERM


@dataclass(frozen=True, slots=True)
class PassOn:
    """Hand a signal on to the workers that handle it; the others hear nothing."""

    signum: int


@dataclass(frozen=True, slots=True)
class AskDrain:
    """Ask the workers to save and leave at a step boundary."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class SayLeft:
    """All workers of the round have ended here, or have left it; so many can take part then."""

    round: int
    fault: FaultReport
    stays: bool
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class SayInPlace:
    """The script recovers in place; ``hosts``: this node hosts the store of the first round."""

    hosts: bool


@dataclass(frozen=True, slots=True)
class LookForMembers:
    """Are the other members of the round in reach? ``Surveyed`` follows."""

    round: int


@dataclass(frozen=True, slots=True)
class SayAvailable:
    """So many workers can take part in a round now."""

    workers: int


@dataclass(frozen=True, slots=True)
class BootWorkers:
    """Start workers that run up to ``elastic.run`` and wait there."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EnterWorkers:
    """Have these workers take part in the round, in this order."""

    round: RoundRecord
    group_rank: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InterruptWorkers:
    """Have these workers leave the round now."""

    round: int
    local_ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeWorkers:
    """Have all workers leave the round at a step that all ranks agree on."""

    round: int
    reason: str
    goes: bool = False


@dataclass(frozen=True, slots=True)
class AskWorkers:
    """Ask workers where they are."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Have workers say where all their threads are, in their logs, and end them.

    Attributes:
        local_ranks: which ones.
        why: what they did, for people: a predicate, such as "hung at train.py:88".
    """

    local_ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class DismissWorkers:
    """There is no further round for these workers: they may end.

    Attributes:
        saves: the local rank of the one that saves what it remembers before; None: nobody does.
    """

    saves: int | None = None


@dataclass(frozen=True, slots=True)
class SayDone:
    """The script ended well here."""

    round: int


@dataclass(frozen=True, slots=True)
class SayDrain:
    """This node was asked to leave."""


@dataclass(frozen=True, slots=True)
class SayGoodbye:
    """Nothing runs here any more."""


@dataclass(frozen=True, slots=True)
class SetAlarm:
    """``Alarm`` at this moment; replaces an earlier one; infinity: none."""

    at: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The agent's life is over.

    Attributes:
        exit_code: see ``errors``.
        message: for the user, "" if all is said.
        outcome: the job's end, if that is why.
    """

    exit_code: int
    message: str = ""
    outcome: OutcomeRecord | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """An event for people and for the log."""

    event: events.Event


Action = (
    StartServer
    | SayJoin
    | StartWorkers
    | StopWorkers
    | PassOn
    | AskDrain
    | SayLeft
    | SayInPlace
    | SayAvailable
    | LookForMembers
    | BootWorkers
    | EnterWorkers
    | InterruptWorkers
    | ChangeWorkers
    | AskWorkers
    | KillWorkers
    | DismissWorkers
    | SayDone
    | SayDrain
    | SayGoodbye
    | SetAlarm
    | Finish
    | Report
)

# ---------------------------------------------------------------- state


class Phase(Enum):
    """Where an agent is in its life."""

    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    ENDED = "ended"


class Then(Enum):
    """What follows when the last worker has ended."""

    REJOIN = "rejoin"
    NEW_LIFE = "new life"
    LEAVE = "leave"
    END = "end"


class Seat(Enum):
    """Where a worker is, in place."""

    BOOT = "on its way to elastic.run"
    READY = "ready for a round"
    IN = "in the round"
    OUT = "through with train"


@dataclass(frozen=True, slots=True)
class Seated:
    """One worker, as the agent of a job in place sees it.

    Attributes:
        seat: where it is.
        since: the first round that it took part in; a worker keeps its place before younger ones.
    """

    seat: Seat = Seat.BOOT
    since: int = 1 << 62


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """What the life of an agent depends on.

    Attributes:
        workers: on this node.
        min_workers: in place, how many of them are enough for the node to go on.
        max_restarts: only told to people: the leader's budget decides.
        timeouts: the job's.
        stuck: how long workers that were told to leave a round have before they are asked where
            they are (seconds).
    """

    workers: int
    min_workers: int = defaults.MIN_WORKERS
    max_restarts: int = defaults.MAX_RESTARTS
    timeouts: Timeouts = field(default_factory=Timeouts)
    stuck: float = defaults.LOOK_FOR_STUCK

    @classmethod
    def of(cls, config: JobConfig) -> LifecycleSettings:
        """The lifecycle's part of a job's settings."""
        return cls(config.workers, config.min_workers, config.max_restarts, config.timeouts)


@dataclass(frozen=True, slots=True)
class State:
    """All that an agent knows about its own life.

    Attributes:
        phase: where it is.
        then: what follows ``STOPPING``.
        round: the round that runs, or ran last.
        alive: local ranks whose workers have not ended.
        drains: local ranks that can leave at a step boundary.
        drained: some worker has done so in this round.
        draining: the workers were asked to leave at a step boundary.
        told_to_stop: they were told to end, and may fail as they like from then on.
        faults: the unwanted ends so far.
        why: why the round is left if no worker failed.
        server: the fork server is ready.
        server_deaths: how often in a row it died before it was ready.
        contacted: the store has answered at least once.
        asked: the signal that asked us to leave.
        finish: what to end with.
        group_rank: this node's rank in the round.
        in_place: the script has come to ``elastic.run``, or the job is known to.
        seats: in place, where each worker that has a process is, by local rank.
        joined: in place, this node has asked in.
        counted_on: in place, this node said that it stays when all ranks agreed to leave the round.
        released: in place, all ranks knew that this node goes when they agreed to leave the round.
        holds_from: in place, since when it waits to go, once it was asked to.
        interrupted_at: in place, when the workers were told to leave the round at once.
        overdue: in place, for how many seconds workers that do not leave a broken round have made
            no step, if that is a hang; else 0.0.
        heard: in place, what workers have said of where they are since they were asked.
        asking: in place, they were asked.
        asked_at: when they were last asked, in seconds on the monotonic clock.
        surveyed_at: when the other members of the round were last found to be in reach.
        busy_at: when one of them last had a worker that was busy with something else.
        boots: in place, how many workers in a row ended before they came to ``elastic.run``.
    """

    settings: LifecycleSettings
    phase: Phase = Phase.STARTING
    then: Then = Then.REJOIN
    round: RoundRecord | None = None
    alive: frozenset[int] = frozenset()
    drains: frozenset[int] = frozenset()
    drained: bool = False
    draining: bool = False
    told_to_stop: bool = False
    faults: tuple[FaultReport, ...] = ()
    why: FaultReport | None = None
    server: bool = False
    server_deaths: int = 0
    contacted: bool = False
    asked: Request | None = None
    finish: Finish | None = None
    group_rank: int = 0
    in_place: bool = False
    seats: Mapping[int, Seated] = field(default_factory=dict)
    joined: bool = False
    counted_on: bool = False
    released: bool = False
    holds_from: float = 0.0
    interrupted_at: float | None = None
    overdue: float = 0.0
    heard: Mapping[int, WorkerHeard] = field(default_factory=dict)
    asking: bool = False
    asked_at: float = float("-inf")
    surveyed_at: float = float("-inf")
    busy_at: float = float("-inf")
    boots: int = 0

    def seated(self, *seats: Seat) -> tuple[int, ...]:
        """The local ranks of the workers in one of these seats, the oldest first."""
        found = [rank for rank, seated in self.seats.items() if seated.seat in seats]
        return tuple(sorted(found, key=lambda rank: (self.seats[rank].since, rank)))

    @property
    def available(self) -> int:
        """How many workers can take part in a round now, or do; 0 if they are too few."""
        count = len(self.seated(Seat.READY, Seat.IN))
        return count if count >= self.settings.min_workers else 0


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from an event."""

    state: State
    actions: tuple[Action, ...] = ()
    reason: str = ""
