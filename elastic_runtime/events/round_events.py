"""Events of rounds, from the moment that one is formed until it is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.events.event import DEBUG, WARNING, Event, NotedEvent
from elastic_runtime.limits import NOTICEABLE_LOSS
from elastic_runtime.reporting.wording import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How restarts are counted, by what caused them: the keys of ``restarts`` in events, metrics, an
# agent's report and the status of an ElasticJob.
RESTART_CLASSES = ("failed", "killed", "lost", "planned")


@dataclass(frozen=True)
class RoundSealed(Event):
    """A round is formed, and this node is a member of it."""

    name = "round.sealed"
    sentence = "round {round}: {workers} workers on {nodes} nodes ({reason})"

    round: int
    workers: int
    nodes: int
    reason: str = ""
    group_rank: int = 0
    restarts: Mapping[str, int] | None = None

    def message(self) -> str:
        """The round, how large it is, and why it was formed."""
        why = f" ({self._words()['reason']})" if self.reason else ""
        size = f"{count(self.workers, 'worker')} on {count(self.nodes, 'node')}"
        return f"round {self.round}: {size}{why}"


@dataclass(frozen=True)
class RoundRecovered(Event):
    """The first step of a round is done, after the round before has ended by a fault or a change of
    the membership."""

    name = "round.recovered"
    sentence = "round {round}: recovered in {seconds}, after {stalled} without a step"

    round: int
    seconds: float
    step: int = -1
    stalled: float | None = None

    def message(self) -> str:
        """The round, and what its recovery has cost."""
        return f"round {self.round}: {self.cost()}"

    def cost(self) -> str:
        """How long the recovery took, and how long there was no step if that was far longer, as
        with a hang, which nobody knows of before its time-out."""
        stalled = ""
        if self.stalled is not None and self.stalled > self.seconds + NOTICEABLE_LOSS:
            stalled = f", after {duration(self.stalled)} without a step"
        return f"recovered in {duration(self.seconds)}{stalled}"


@dataclass(frozen=True)
class RoundLeft(Event):
    """This node has left a round, by a fault or for a change of the membership."""

    name = "round.left"
    sentence = "round {round} was left: {reason}"
    shown = False

    round: int
    reason: str


@dataclass(frozen=True)
class RoundEntered(NotedEvent):
    """In place: rank 0 has connected to the other ranks and has the state that all agree on."""

    name = "round.entered"
    level = DEBUG
    sentence = "connected in {connect} s, the state was ready after another {sync} s"
    shown = False

    connect: float
    sync: float


@dataclass(frozen=True)
class RegroupChosen(NotedEvent):
    """In place: how ranks will come from one round to the next; once, from the first rank 0."""

    name = "regroup.chosen"
    sentence = "training in place: ranks regroup by {how} (torch {torch})"

    how: str
    torch: str


@dataclass(frozen=True)
class RoundError(NotedEvent):
    """In place: an error has thrown a worker out of a round, and the error is not its own: another
    rank has gone, or a connection broke."""

    name = "round.error"
    level = DEBUG
    sentence = "left the round: {reason}"
    shown = False

    reason: str


@dataclass(frozen=True)
class RoundWaits(Event):
    """In place: no step for ``--hang-timeout``, and workers of other nodes say that they are busy,
    so that nobody is replaced."""

    name = "round.waits"
    sentence = "no step so far: workers of {nodes} are busy()"
    whole_job = False

    nodes: Sequence[str]


@dataclass(frozen=True)
class FaultRetry(Event):
    """A round is formed after a failure of the script that counts against ``--max-restarts``."""

    name = "fault.retry"
    level = WARNING
    sentence = "trying again (failure {failures} of {budget} allowed): {reason}"

    reason: str
    failures: int
    budget: int


@dataclass(frozen=True)
class StepNone(Event):
    """In place: ``train`` runs for a minute, and no step was committed."""

    name = "step.none"
    level = WARNING
    sentence = (
        "no step was committed in the first {seconds} of train: {where}; if it makes steps, "
        "state.commit() must follow each of them, on all ranks"
    )
    whole_job = False

    seconds: float
    where: str


@dataclass(frozen=True)
class TrainReturnedAlone(NotedEvent):
    """In the restart form: ``train`` has returned on a rank, and for long on no other."""

    name = "train.returned_alone"
    level = WARNING
    sentence = (
        "train has returned on rank {rank} after step {step}, and waits for the other ranks; if "
        "they wait for it in a further step, let all decide by what is the same everywhere, such "
        "as state.step"
    )

    step: int


@dataclass(frozen=True)
class StepFirst(NotedEvent):
    """A worker has done the first step of a round; its agent knows from it how long the recovery
    took."""

    name = "step.first"
    level = DEBUG
    logged = False
    shown = False

    step: int
