"""What can happen to an agent, and what it can do: the events and actions of ``lifecycle_step``.

Messages of workers, notices of the rendezvous and events for it have no types of their own here: an
event or an action carries the message itself.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.protocol.messages import (
    Ask,
    Change,
    Dismiss,
    Heard,
    Hello,
    Interrupt,
    Leave,
    Left,
    Ready,
    Returned,
    Trained,
)
from elastic_runtime.rendezvous.core.notices import Notice

if TYPE_CHECKING:
    from elastic_runtime import events
    from elastic_runtime.agent.lifecycle.hang_detection import StepProgress
    from elastic_runtime.protocol.records import FaultReport, OutcomeRecord
    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.rendezvous.core.membership_events import AgentEvent

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ForkServerReady:
    """The fork server can start workers.

    Attributes:
        why_cold: why workers are fresh processes and not forks; "" if they are forks, or if fresh
            ones were asked for.
        modules: what was imported ahead.
        skipped: ``name: reason`` of what could not be.
    """

    why_cold: str = ""
    modules: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForkServerExited:
    """The fork server is gone; the ends of its workers were reported before.

    Attributes:
        why: for people.
        refused: it could not even be started, however often that was tried.
    """

    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker has ended, and its output has been passed on.

    It runs no code any more. Its process may still hold memory, and the end of its process group
    may be under way; the next worker with its local rank begins after that.

    Attributes:
        round: the round it was started for.
        local_rank: which one.
        code: exit code, or minus the number of the signal that ended it.
        left_at_step: it left at a step boundary, as it was asked to.
        fault: what its end means if it was not requested; None after exit code 0, and until the
            worker group has read what the worker left behind.
        pid: its process; 0 if there never was one (its error file says why).
        lifetime: seconds that it ran.
        with_server: its fork server had died.
        refused: why the machine has refused to start it, however often that was tried; "" if it
            has not.
    """

    round: int
    local_rank: int
    code: int
    left_at_step: bool = False
    fault: FaultReport | None = None
    pid: int = 0
    lifetime: float = 0.0
    with_server: bool = False
    refused: str = ""


WorkerMessage = Hello | Ready | Left | Trained | Returned | Heard


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """A worker has sent a message.

    Attributes:
        local_rank: which one.
        message: ``Hello`` says whether it can leave at a step boundary; the others are those of a
            script in place.
    """

    local_rank: int
    message: WorkerMessage


@dataclass(frozen=True, slots=True)
class LeaveRequested:
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
    """The time set with ``SetAlarm`` has come; the rest as in ``LeaveRequested``."""

    alone: bool = False
    leads: bool = False
    served: bool = True


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """The agent has looked at the progress of its workers, as it does in each turn of its loop.

    Attributes:
        progress: what they show.
        messages_wait: messages have arrived that were not handled yet.
    """

    progress: StepProgress
    messages_wait: bool = False


LifecycleEvent = (
    ForkServerReady
    | ForkServerExited
    | WorkerExited
    | WorkerSaid
    | ProgressSeen
    | LeaveRequested
    | Alarm
    | Notice
)

# ---------------------------------------------------------------- actions on workers


@dataclass(frozen=True, slots=True)
class StartForkServer:
    """Start the fork server (again)."""


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start all workers of this node, for one round that they do not outlive."""

    round: RoundRecord
    group_rank: int


@dataclass(frozen=True, slots=True)
class StartForNextRound:
    """In place: start workers that run up to ``elastic.run`` and wait there."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EnterRound:
    """In place: have these workers take part in the round, in this order."""

    round: RoundRecord
    group_rank: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TellWorkers:
    """Send a message to workers.

    Attributes:
        message: what they are sent.
        local_ranks: which ones; none: all.
    """

    message: Leave | Interrupt | Change | Ask | Dismiss
    local_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """A signal to workers (to all if none are named), SIGKILL after ``grace`` seconds.

    Those that do not handle ``signum`` get SIGTERM.
    """

    grace: float
    local_ranks: tuple[int, ...] = ()
    signum: int = signal.SIGTERM


@dataclass(frozen=True, slots=True)
class ForwardSignal:
    """Hand a signal on to the workers that handle it; the others get none."""

    signum: int


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Have workers say where all their threads are, in their logs, and end them.

    Attributes:
        local_ranks: which ones.
        why: what they did, for people: a predicate, such as "hung at train.py:88".
    """

    local_ranks: tuple[int, ...]
    why: str


# ---------------------------------------------------------------- other actions


@dataclass(frozen=True, slots=True)
class HostStore:
    """In place: host the TCPStore of rounds, unless this node does already.

    Attributes:
        port: the one that was announced for a round; 0: a free one.
    """

    port: int = 0


@dataclass(frozen=True, slots=True)
class TellRendezvous:
    """Tell the rendezvous what has happened on this node.

    Attributes:
        event: as it is recorded, but for what only who performs this knows: the port on which this
            node would host a store, and the last step that its workers have reached.
    """

    event: AgentEvent


@dataclass(frozen=True, slots=True)
class SetAlarm:
    """``Alarm`` at this moment; replaces an earlier one; infinity: none."""

    at: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The agent ends.

    Attributes:
        exit_code: see ``errors``.
        message: for the user, "" if all is said.
        outcome: the job's end, if that is why.
    """

    exit_code: int
    message: str = ""
    outcome: OutcomeRecord | None = None


@dataclass(frozen=True, slots=True)
class TellPeople:
    """An event for people and for the log."""

    event: events.Event


# What is done, and what is only told.
Deed = (
    StartForkServer
    | StartWorkers
    | StartForNextRound
    | EnterRound
    | TellWorkers
    | StopWorkers
    | ForwardSignal
    | KillWorkers
    | HostStore
    | TellRendezvous
    | SetAlarm
    | Finish
)
Action = Deed | TellPeople
