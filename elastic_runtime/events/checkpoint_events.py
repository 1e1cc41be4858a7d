"""Events of checkpoints in a storage: saves, and going on from one.

Rank 0 reports them for all ranks, except for ``CheckpointCommitted``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.events.event import DEBUG, WARNING, NotedEvent
from elastic_runtime.reporting.wording import again

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class CheckpointSaved(NotedEvent):
    """A checkpoint is whole in its storage."""

    name = "checkpoint.saved"
    sentence = "step {step} saved in {seconds}"
    shown = False

    path: str
    step: int
    bytes: int
    seconds: float
    blocked: float | None = None


@dataclass(frozen=True)
class CheckpointCommitted(NotedEvent):
    """A checkpoint is whole, reported by all ranks but 0, for what their agents know of the job."""

    name = "checkpoint.committed"
    level = DEBUG
    logged = False
    shown = False

    step: int


@dataclass(frozen=True)
class CheckpointSaveFailed(NotedEvent):
    """A save has failed; training goes on, and another save is tried after a growing pause."""

    name = "checkpoint.save_failed"
    level = WARNING
    sentence = "step {step} could not be saved, and is soon tried again: {problem}"

    path: str
    step: int
    problem: str


@dataclass(frozen=True)
class CheckpointSaveDiscarded(NotedEvent):
    """A save was given up, mostly as the world has changed under it; it is done again soon."""

    name = "checkpoint.save_discarded"
    level = DEBUG
    sentence = "the save of step {step} was given up: {reason}"
    shown = False

    path: str
    step: int
    reason: str


@dataclass(frozen=True)
class CheckpointSaveLate(NotedEvent):
    """A save is still under way while the next one is due; at once, and then every minute."""

    name = "checkpoint.save_late"
    level = WARNING
    sentence = "{problem}, and training goes on ({seconds} so far)"

    path: str
    step: int
    seconds: float
    problem: str


@dataclass(frozen=True)
class CheckpointEndsUnsaved(NotedEvent):
    """Training ends, and no save has succeeded since the last one that failed."""

    name = "checkpoint.ends_unsaved"
    level = WARNING
    sentence = "{problem}"

    path: str
    step: int
    problem: str


@dataclass(frozen=True)
class CheckpointPruneFailed(NotedEvent):
    """Older checkpoints could not be deleted; that is tried again after the next save."""

    name = "checkpoint.prune_failed"
    level = DEBUG
    sentence = "older checkpoints in {path} could not be removed: {problem}"
    shown = False

    path: str
    problem: str


@dataclass(frozen=True)
class CheckpointSetAside(NotedEvent):
    """The job goes on from an older state, and a newer checkpoint that does not belong to its past
    any more is marked, so that nobody resumes from it."""

    name = "checkpoint.set_aside"
    level = DEBUG
    sentence = "the checkpoint of step {step} is set aside: {problem}"
    shown = False

    path: str
    step: int
    term: int
    problem: str


@dataclass(frozen=True)
class CheckpointRestsRemoved(NotedEvent):
    """After a save: the files of unfinished saves of older terms were deleted."""

    name = "checkpoint.rests_removed"
    sentence = "removed the files of unfinished saves: {names}"
    shown = False

    path: str
    names: Sequence[str]


@dataclass(frozen=True)
class CheckpointUnreachable(NotedEvent):
    """An object store does not answer at the start: after 5 s, then every 30 s."""

    name = "checkpoint.unreachable"
    level = WARNING
    sentence = "{path} cannot be reached, and is tried again ({seconds} so far): {why}"

    path: str
    why: str
    seconds: float


@dataclass(frozen=True)
class CheckpointProgress(NotedEvent):
    """Now and then while a long save or load is under way."""

    name = "checkpoint.progress"
    sentence = "{doing}: {percent} %"

    doing: str
    percent: int


@dataclass(frozen=True)
class CheckpointResumed(NotedEvent):
    """The job goes on from a checkpoint, or from a snapshot."""

    name = "checkpoint.resumed"
    sentence = "resumed at step {step} from memory (… steps again)"

    path: str
    step: int
    seconds: float
    source: str = "storage"
    reached: int | None = None

    def message(self) -> str:
        """From which step, from where if it is no storage, and how many steps are made again."""
        where = "" if self.source == "storage" else " from memory"
        return f"resumed at step {self.step}{where}{again(self.step, self.reached)}"


@dataclass(frozen=True)
class CheckpointDamaged(NotedEvent):
    """A checkpoint is not what was written; the next older one is taken."""

    name = "checkpoint.damaged"
    level = WARNING
    sentence = "the checkpoint of step {step} in {path} is damaged and not used: {problem}"

    path: str
    step: int
    problem: str


@dataclass(frozen=True)
class CheckpointPartly(NotedEvent):
    """With ``strict=False``: not all of a checkpoint and of the program fit each other."""

    name = "checkpoint.partly"
    level = WARNING
    sentence = "not all of the checkpoint fits this program: it lacked {missing}; {surplus} of it …"

    path: str
    missing: Sequence[str]
    surplus: Sequence[str]

    def message(self) -> str:
        """What the checkpoint lacked, and what of it was left out."""
        words = self._words()
        parts = [f"it lacked {words['missing']}"] if self.missing else []
        parts += [f"{words['surplus']} of it was left out"] if self.surplus else []
        return f"not all of the checkpoint fits this program: {'; '.join(parts)}"


@dataclass(frozen=True)
class CheckpointAnew(NotedEvent):
    """Entries that each rank has for itself (``PerRank``) stay as the program has made them, as
    another number of ranks has saved the checkpoint."""

    name = "checkpoint.anew"
    level = WARNING
    sentence = (
        "{entries} of each rank stay as the program has made them: another number of ranks has "
        "saved the checkpoint"
    )

    path: str
    entries: Sequence[str]
