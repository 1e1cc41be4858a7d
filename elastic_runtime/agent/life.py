"""The words of an agent's life: what can happen, what can be done, and what it knows.

``lifecycle`` says how one follows from the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from elastic_runtime.rendezvous.state import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.protocol.records import FaultReport, OutcomeRecord, RoundRecord

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The fork server can start workers; ``cold`` says why not warm ones, "" if they are warm."""

    cold: str = ""


@dataclass(frozen=True, slots=True)
class ServerDied:
    """The fork server is gone, and with it all workers."""

    why: str


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
    """A signal asked this agent to leave."""

    signum: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """The time set with ``SetAlarm`` has come."""


Event = ServerReady | ServerDied | WorkerExited | WorkerDrains | Asked | Alarm | Notice

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start the fork server (again)."""


@dataclass(frozen=True, slots=True)
class SayJoin:
    """Ask to be in the next round, as a new life."""


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the round's workers."""

    round: RoundRecord
    group_rank: int


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """SIGTERM to all workers, SIGKILL after ``grace`` seconds."""

    grace: float


@dataclass(frozen=True, slots=True)
class AskDrain:
    """Ask the workers to save and leave at a step boundary."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class SayLeft:
    """All workers of the round have ended here."""

    round: int
    fault: FaultReport
    stays: bool


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

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


Action = (
    StartServer
    | SayJoin
    | StartWorkers
    | StopWorkers
    | AskDrain
    | SayLeft
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


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, as in ``config.Timeouts``; ``workers`` is the number of local workers.

    ``max_restarts`` is only told to people: the leader's budget decides.
    """

    workers: int
    grace: float
    broken_grace: float
    connect: float
    join: float
    max_restarts: int = 3


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
        connected: the store answers.
        contacted: it has answered at least once.
        lost_why: why it does not answer.
        asked: how many signals asked us to leave.
        finish: what to end with.
    """

    settings: Settings
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
    connected: bool = False
    contacted: bool = False
    lost_why: str = ""
    asked: int = 0
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from an event."""

    state: State
    actions: tuple[Action, ...] = ()
    reason: str = ""
