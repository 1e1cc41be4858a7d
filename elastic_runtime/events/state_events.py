"""Events of the training state in place: which rank's memory, or which checkpoint, a round goes on
from. Rank 0 reports them, except for ``StateUnfit``."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.events.event import DEBUG, WARNING, NotedEvent
from elastic_runtime.reporting.wording import again, count


@dataclass(frozen=True)
class StateGiven(NotedEvent):
    """Ranks have got the state of another rank's memory."""

    name = "state.given"
    sentence = "step {step} was given to {to} ranks from memory"
    shown = False

    step: int
    to: int
    given_up: int | None = None
    reached: int | None = None


@dataclass(frozen=True)
class ReplicasKept(NotedEvent):
    """The world has changed between two syncs, and ranks keep what they have trained alone."""

    name = "state.replicas_kept"
    sentence = (
        "after sync {step}: {keep} of the ranks keep their inner steps, up to {inner} of {every}, "
        "and {new} begin with the common model"
    )

    step: int
    inner: int
    every: int
    keep: int
    new: int


@dataclass(frozen=True)
class ReplicasLeftOut(NotedEvent):
    """``train`` has returned some inner steps after the last sync, without one of its own."""

    name = "state.replicas_left_out"
    level = WARNING
    sentence = (
        "train has returned {inner} inner steps after the last sync: they are brought in now, and "
        "what it has saved or evaluated lacks them; call sync() at its end"
    )

    inner: int


@dataclass(frozen=True)
class ReplicaDropped(NotedEvent):
    """What a rank has trained alone is not finite, and the others go on without it."""

    name = "state.replica_dropped"
    level = WARNING
    sentence = (
        "what this rank has trained since step {step} is not finite: it does not count, and the "
        "rank goes on from the common model"
    )

    step: int


@dataclass(frozen=True)
class StateUnfit(NotedEvent):
    """A rank has left a round, and others cannot go on from the state in its memory."""

    name = "state.unfit"
    level = WARNING
    sentence = "the state of step {step} in memory cannot be used: {reason}"

    step: int
    reason: str


@dataclass(frozen=True)
class StateLoaded(NotedEvent):
    """No rank's memory can be gone on from, and all ranks have loaded a checkpoint."""

    name = "state.loaded"
    level = WARNING
    sentence = "went back to step {step} (… steps again): {reason}"

    step: int
    reason: str
    given_up: int | None = None
    reached: int | None = None

    def message(self) -> str:
        """To which step, how many are made again, and why."""
        steps = again(self.step, self.reached)
        return f"went back to step {self.step}{steps}: {self._words()['reason']}"


@dataclass(frozen=True)
class StateFresh(NotedEvent):
    """No rank's memory can be gone on from, and nothing is saved: the ranks begin at step 0."""

    name = "state.fresh"
    level = WARNING
    sentence = "training starts again at step 0: {reason}"

    reason: str
    given_up: int | None = None
    reached: int | None = None


@dataclass(frozen=True)
class StateNotSaved(NotedEvent):
    """A worker that is to save what it has before it ends does not, as it is not whole or not the
    newest."""

    name = "state.not_saved"
    level = DEBUG
    sentence = "step {step} is not saved: {reason}"
    shown = False

    step: int
    reason: str


@dataclass(frozen=True)
class StateLacks(NotedEvent):
    """Something takes part in the steps and is not in the State; the agent makes a hint of it."""

    name = "state.lacks"
    level = DEBUG
    logged = False
    shown = False

    problem: str


@dataclass(frozen=True)
class DataShuffles(NotedEvent):
    """A DataLoader takes its order from a sampler for one world; the agent makes a hint of it."""

    name = "data.shuffles"
    level = DEBUG
    logged = False
    shown = False

    sampler: str


@dataclass(frozen=True)
class TrainerUnadapted(NotedEvent):
    """A worker has made steps that are not reported, by a trainer that there is an adapter for, or
    alone; the agent makes hints of it."""

    name = "trainer.unadapted"
    level = DEBUG
    logged = False
    shown = False

    trainer: str
    alone: bool


@dataclass(frozen=True)
class DutyUnknown(NotedEvent):
    """Something was owed when the state was saved that this program has not."""

    name = "state.duty_unknown"
    level = WARNING
    sentence = (
        "{duty!r} was owed after step {step}, and this program has no state.at(...) of that name: "
        "it is not done"
    )

    duty: str
    step: int


@dataclass(frozen=True)
class StateCopied(NotedEvent):
    """A collective of the script stands between an optimizer and its commit."""

    name = "state.copied"
    sentence = (
        "a collective stands between an optimizer and its commit(): from now on each commit copies "
        "all parameters and optimizer state, so that a fault there can be undone; to save the "
        "memory and the time, call it before the optimizer, or in what state.at(...) calls"
    )


@dataclass(frozen=True)
class StepPieces(NotedEvent):
    """How the steps of a job are cut, at the start and after each change."""

    name = "data.step_pieces"
    sentence = "a step has {samples} samples: {workers} workers, {at_once} each"

    samples: int
    workers: int
    at_once: int
    pieces: int

    def message(self) -> str:
        """How many samples a worker takes, and in how many pieces."""
        even = self.workers * self.pieces * self.at_once == self.samples
        each = f"{'' if even else 'up to '}{self.at_once}"
        each += f" at once each, in {self.pieces} pieces" if self.pieces > 1 else " each"
        samples, workers = count(self.samples, "sample"), count(self.workers, "worker")
        return f"a step has {samples}: {workers}, {each}"


@dataclass(frozen=True)
class LoopHint(NotedEvent):
    """A script's loop very likely does not do what it means to."""

    name = "loop.hint"
    level = WARNING
    sentence = "{text}"

    text: str
