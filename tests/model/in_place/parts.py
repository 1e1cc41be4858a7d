"""What the model of recovery in place is made of: a storage in memory, and processes.

A history says of each committed step in which round it was made. Two memories are alike if their
histories are; one is part of the other if it is its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.checkpoint.format.manifest import CheckpointId, newest_first
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.storage.storage_contract import Storage
from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RankStatus,
    StateVersion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

History = tuple[int, ...]


class ModelStorage(Storage):
    """Checkpoints as histories, with the real rules of terms."""

    def __init__(self) -> None:
        self.where = "the model"
        self.whole: dict[CheckpointId, History] = {}
        self.unfinished: set[CheckpointId] = set()
        self.files: dict[str, bytes] = {}
        self.unreadable: set[CheckpointId] = set()
        self.passed: set[CheckpointId] = set()  # were tried in vain: the job went back knowingly

    def prepare(self) -> None:
        """It can always be written."""

    def names(self) -> list[str]:
        found = [one.name for one in (*self.whole, *self.unfinished)]
        return [*found, *self.files]

    def _create_exclusively(self, name: str, content: bytes) -> bool:
        new = name not in self.files
        self.files.setdefault(name, content)
        return new

    def _forget(self, name: str) -> None:
        self.files.pop(name, None)

    def _read_entry(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def has_manifest(self, which: CheckpointId) -> bool:
        return which in self.whole

    def read_manifest(self, which: CheckpointId) -> None:
        return None

    def newest(self) -> CheckpointId | None:
        """The newest whole one that can be read, and was not passed over."""
        for which in newest_first(self.names()):
            if which in self.whole and which not in self.unreadable | self.passed:
                return which
        return None

    # What the model does by itself

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    create = discard = remove = writer = reader = sizes = _unused
    read_bytes = _manifest_bytes = finish_removals = _publish = _unused


class Context:
    """Whose process it is; nobody hears its events."""

    run, incarnation, round, restarts = "model", "life", 0, 0

    def note(self, *_: Any, **__: Any) -> None:
        """An event."""


@dataclass
class Process:
    """A worker: what it remembers, and what it can do with the storage.

    Attributes:
        history: of its last commit.
        condition: of its memory.
        alike: the last round in which all ranks were alike.
        made: the round in which the step was made that it has finished and not committed.
        saved: the last step that it knows to be saved.
        silent: it is stopped.
        first: it was rank 0 of the last round that it came into.
    """

    number: int
    term: SaveTerm
    context: Context
    history: History = ()
    condition: MemoryCondition = MemoryCondition.NEW
    alike: int = 0
    made: int = 0
    saved: int = -1
    silent: bool = False
    first: bool = False
    alive: bool = True

    @property
    def step(self) -> int:
        """How many steps it has committed."""
        return len(self.history)

    def rank_status(self, number: int) -> RankStatus:
        """What it tells the others in this round."""
        latest = self.alike == number - 1
        base = StateVersion(self.term.base.term, self.term.base.step)
        return RankStatus(
            self.step, self.condition, self.alike, self.term.newest_known, latest, base
        )

    def hold(self, history: History) -> None:
        """Its memory is exactly that now."""
        self.history, self.condition = history, MemoryCondition.CLEAN


def process(number: int, storage: ModelStorage) -> Process:
    """A new one."""
    context = Context()
    return Process(number, SaveTerm(storage, context), context)  # type: ignore[arg-type]


@dataclass
class Save:
    """A save on its way; a rank that has not heard of it contributes nothing.

    Attributes:
        which: what it is going to be.
        history: what is saved.
        by: rank 0, and all ranks.
        heard: those that know.
        given: those that have written their part.
    """

    which: CheckpointId
    history: History
    by: Sequence[Process]
    heard: set[int]
    given: set[int]

    @property
    def complete(self) -> bool:
        """Rank 0 may commit it."""
        return len(self.given) == len(self.by)


def steps_of(found: Mapping[CheckpointId, History]) -> list[str]:
    """For messages."""
    return [f"{which.name}: {history}" for which, history in sorted(found.items())]
