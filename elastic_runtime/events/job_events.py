"""Events of a job as a whole, and of its start and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.events.event import ERROR, WARNING, Event
from elastic_runtime.limits import NOTICEABLE_LOSS
from elastic_runtime.reporting.wording import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class JobJoinCommand(Event):
    """``elastic-run`` hosts the store of a new job that more nodes may join."""

    name = "job.join_command"
    sentence = "another node joins with:\n  {command}"
    kept = False

    command: str

    def message(self) -> str:
        """The command, whole, in a line of its own."""
        return self.sentence.format(command=self.command)


@dataclass(frozen=True)
class JobWaiting(Event):
    """No round can be formed, or this node waits to be admitted; again when the reason changes."""

    name = "job.waiting"
    sentence = "waiting for nodes: {have} of {minimum} are here ({reason})"
    kept = False

    reason: str
    have: int
    minimum: int
    maximum: int
    outside: bool = False

    def message(self) -> str:
        """How many nodes there are, if that is what is waited for."""
        reason = self._words()["reason"]
        nodes = count(self.have, "node")
        if self.outside:
            return f"{reason} ({nodes} in the job)"
        if self.minimum == 0:
            return f"waiting: {reason}"
        if self.have >= self.minimum and reason:
            return f"waiting: {reason} ({nodes})"
        why = f" ({reason})" if reason else ""
        return f"waiting for nodes: {self.have} of {self.minimum} are here{why}"


@dataclass(frozen=True)
class _Costs(Event):
    seconds: float
    restarts: Mapping[str, int] | None = None
    lost_steps: int | None = None
    stalled: float | None = None
    goodput: float | None = None


@dataclass(frozen=True)
class JobDone(_Costs):
    """All workers of the job have ended well, and so does this node."""

    name = "job.done"
    sentence = "done in {seconds}: … restarts, … steps made again, … stalled, goodput … %"

    def message(self) -> str:
        """The end of a job, and what its faults have cost."""
        restarts = {kind: times for kind, times in (self.restarts or {}).items() if times}
        costs = []
        if restarts:
            kinds = ", ".join(f"{times} {kind}" for kind, times in restarts.items())
            costs.append(f"{count(sum(restarts.values()), 'restart')} ({kinds})")
        if self.lost_steps:
            costs.append(f"{count(self.lost_steps, 'step')} made again")
        if self.stalled and self.stalled >= NOTICEABLE_LOSS:
            costs.append(f"{duration(self.stalled)} stalled")
        if self.goodput is not None:
            costs.append(f"goodput {100 * self.goodput:.0f} %")
        text = f"done in {duration(self.seconds)}"
        return f"{text}: {', '.join(costs)}" if costs else text


@dataclass(frozen=True)
class JobOver(_Costs):
    """The job has ended well, and this node was in no round of it."""

    name = "job.over"
    sentence = "the job is done; this node was in no round of it"
    whole_job = False


@dataclass(frozen=True)
class JobFailed(_Costs):
    """The job has failed. The command's last line says it to people."""

    name = "job.failed"
    level = ERROR
    sentence = "failed: {reason}"
    shown = False

    reason: str = ""


@dataclass(frozen=True)
class Hint(Event):
    """Something about the job is plainly going to be regretted; once for each subject."""

    name = "hint"
    level = WARNING
    sentence = "hint: {text}"

    about: str
    text: str


@dataclass(frozen=True)
class StartSlow(Event):
    """A part of the start takes long: after 5 s, and each time when it has taken three times as
    long."""

    name = "start.slow"
    sentence = "still {doing} ({seconds} so far)"
    whole_job = False

    doing: str
    seconds: float


@dataclass(frozen=True)
class LocalStarted(Event):
    """``--local-nodes`` has started the nodes as processes of this machine."""

    name = "local.started"
    sentence = "started {nodes} (pids {pids})"
    kept = False

    nodes: Sequence[str]
    pids: Sequence[int]


@dataclass(frozen=True)
class LocalEnded(Event):
    """A signal has ended all nodes of ``--local-nodes``, and none of them could say anything."""

    name = "local.ended"
    level = ERROR
    sentence = "all nodes have ended: {reason}"

    reason: str
