"""One save, from what each rank holds to a checkpoint that exists.

::

    collect ─▶ plan ─▶ begin (rank 0) ─▶ write (each rank) ─▶ compare, commit (rank 0)
    └── in training's thread ──┘      └── there as well, or in the background ──┘

All ranks take each step together and hear of each other's failures, so that all of them end a
save alike.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.checkpoint.format.dcp_metadata import not_as_planned
from elastic_runtime.checkpoint.format.manifest import (
    CheckpointId,
    FileRecord,
    Manifest,
    left_behind,
    newest_first,
)
from elastic_runtime.checkpoint.format.outline_file import file_name
from elastic_runtime.checkpoint.format.rank_outline import Said, say
from elastic_runtime.checkpoint.save import staging
from elastic_runtime.checkpoint.save.background_thread import Abandoned, told
from elastic_runtime.checkpoint.save.file_writer import write_beside, write_file, written_by_all
from elastic_runtime.checkpoint.save.plan_exchange import Plans, agree
from elastic_runtime.checkpoint.storage.catalog import make_room
from elastic_runtime.errors import (
    CheckpointError,
    CheckpointFailed,
    CheckpointUsageError,
    DamagedCheckpoint,
)
from elastic_runtime.events.checkpoint_events import CheckpointRestsRemoved, CheckpointSetAside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_runtime.checkpoint.entries.flat_state import Entries
    from elastic_runtime.checkpoint.format.description import Description
    from elastic_runtime.checkpoint.format.rank_outline import Item
    from elastic_runtime.checkpoint.format.write_plan import Plan
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.worker.context import WorkerContext
    from elastic_runtime.worker.peers import Peers


class Tenure:
    """The term that this process holds, taken before its first save.

    Attributes:
        seen: this job has looked at the place before.
    """

    def __init__(self, storage: Storage, context: WorkerContext) -> None:
        """Remembers who would take a term where; none is taken yet."""
        self._storage = storage
        self._context = context
        self.seen = False
        self._term = 0
        self._used_up = False
        self._inherits = False
        self._known = 0
        self._committed: CheckpointId | None = None
        self._base = CheckpointId(0, 0)
        self._left = CheckpointId(0, 0)
        self._life = 0

    @property
    def term(self) -> int:
        """The newest term in which this process's state was saved, or was about to be."""
        return self._known

    @property
    def base(self) -> CheckpointId:
        """The newest save that this process's state is known not to be older than.

        Of what is saved up to there, all is part of that state, or was set aside.
        """
        return self._base

    def hold(self, entries: Sequence[str]) -> int:
        """The term, which is the newest one of the storage.

        Args:
            entries: the names of what is going to be saved.

        Raises:
            CheckpointError: somebody else has taken a newer one, none can be taken, or what is
                there belongs to another job.
        """
        if self._term:
            self._storage.check_term(self._term)
            if not self._used_up:
                return self._term
        else:
            self.look()
            if not self._inherits:
                self._check_owner(entries)
        holder = {
            "run": self._context.run,
            "incarnation": self._context.incarnation,
            "round": self._context.round,
            "host": socket.gethostname(),
        }
        # If taking one fails half-way, nobody knows whose it is: it must not stop this process.
        self._term, life, term = 0, self._life, 0
        while term <= self._known:
            term = self._storage.take_term(holder)
            if life != self._life and term > self._term:
                self.let_go()  # the one that counts is no longer the newest
            self.check_life(life)
        self._left = self._base
        self._term, self._used_up = term, False
        self.leave_behind()
        with suppress(OSError, CheckpointError):  # the save may do without
            if gone := make_room(self._storage, term):
                self.tell_removed(gone)
        return term

    def look(self) -> None:
        """Makes sure that the place can be written.

        Raises:
            CheckpointUsageError: it refuses this job at its first look, so that it always will.
            CheckpointFailed: it fails at present.
        """
        if self.seen or self._context.restarts:
            self._storage.prepare()
        else:
            self._storage.first_look()
        self.seen = True

    def create(self, step: int, entries: Sequence[str]) -> CheckpointId:
        """Makes room for a save. No save ever meets what another one has left under its name.

        Args:
            step: whose state it is.
            entries: the names of what is going to be saved.

        Raises:
            CheckpointError: see ``hold``; or the room cannot be made.
        """
        while True:
            made = CheckpointId(self.hold(entries), step)
            if self._storage.create(made):
                return made
            self.use_up()  # the step was counted before, or somebody has put something there

    def committed(self, which: CheckpointId) -> None:
        """Takes note of a checkpoint that is whole, whether or not all ranks come to hear of it."""
        self._committed = which

    def whole(self, step: int) -> CheckpointId | None:
        """The checkpoint that holds the present state of this step already; None: none is known.

        Raises:
            CheckpointError: see ``Storage.check_term``.
        """
        found = self._committed
        if found is None or found.step != step or not self._storage.has_manifest(found):
            return None
        self._storage.check_term(found.term)
        return found

    def go_back(self) -> None:
        """The job has gone back to an earlier step: the state of a later one is made anew."""
        self._committed = None

    def hear(self, which: CheckpointId) -> None:
        """All ranks are about to save this.

        Whatever becomes of it, from now on their memory is not older than it. They must know that
        before it can be whole: then whoever outlives the others knows it, too.
        """
        self._base = max(self._base, which)
        self._known = max(self._known, which.term)

    def inherit(self, which: CheckpointId) -> None:
        """What is in the storage is this job's: it has gone on from there, and from nothing newer.

        Args:
            which: what it has gone on from; what is saved from now on is of a newer term.
        """
        self._base = which
        self._known = max(self._known, which.term)
        self._inherits = True
        # Later steps of the own term may be there, and have been left behind; and others may have
        # taken terms in vain since.
        self.let_go()

    def pass_over(self, which: CheckpointId) -> None:
        """This cannot be loaded at present, and the job goes on without it.

        If it can later on, it is not newer than what was made meanwhile.
        """
        self._known = max(self._known, which.term)

    def settle(self, base: CheckpointId, known: int, *, anew: bool) -> None:
        """All ranks go on from memory.

        Args:
            base: of that memory.
            known: the newest term that any of them knows of.
            anew: others may have taken terms in vain since this process took its own: it was
                behind, or has asked and found nothing newer.
        """
        self._base = base
        self._known = max(self._known, known)
        self._inherits = self._inherits or known > 0
        if anew or known > self._term:
            # Others have saved since, and it has come to know that: it was left behind no more.
            self.let_go()

    def leave_behind(self) -> None:
        """Sets aside what is newer than what this process goes on from: it is not in its state.

        Raises:
            CheckpointError: the storage cannot be read or written.
        """
        found = left_behind(self._storage.names(), self._left, self._term)
        for which in found:
            if self._storage.has_manifest(which):
                base = self._left.name if self._left.term else "its beginning"
                why = f"term {self._term} went on from {base}"
                self._storage.set_aside(which, {"why": why, "run": self._context.run})
                where = self._storage.where
                self._context.note(CheckpointSetAside(where, which.step, which.term, why))

    def tell_removed(self, gone: Sequence[CheckpointId]) -> None:
        """An event: the rests of saves that nobody goes on with were removed."""
        names = [one.name for one in gone]
        self._context.note(CheckpointRestsRemoved(self._storage.where, names))

    def use_up(self) -> None:
        """Has the next save take another term: what this one has left must not be met again."""
        self._used_up = True

    def let_go(self) -> None:
        """The next save needs another term: that one may not be the newest any more."""
        self._term, self._used_up = 0, False
        self._committed = None

    def disown(self) -> None:
        """A save that still goes on in another thread has no say in this any more."""
        self._life += 1
        self.let_go()

    @property
    def life(self) -> int:
        """Which of the saves that go on at the same time may speak: those of the newest one."""
        return self._life

    def check_life(self, life: int) -> None:
        """Raises ``Abandoned`` if a save that began in this life was disowned since."""
        if life != self._life:
            raise Abandoned

    def _check_owner(self, entries: Sequence[str]) -> None:
        newest = newest_manifest(self._storage)
        if newest is None or not newest.entries or set(newest.entries) & set(entries):
            return
        raise CheckpointUsageError(
            f"{self._storage.where} holds checkpoints of another job: the newest one, "
            f"{newest.id.name}, has the entries {', '.join(newest.entries)}, and this job has "
            f"{', '.join(entries)}; use another directory"
        )


def newest_manifest(storage: Storage) -> Manifest | None:
    """The manifest of the newest checkpoint that has a readable one."""
    for which in newest_first(storage.names()):
        try:
            if manifest := storage.read_manifest(which):
                return manifest
        except DamagedCheckpoint:
            continue
    return None


@dataclass(frozen=True, slots=True)
class Collected:
    """What this rank is about to write.

    Attributes:
        plan: of all ranks; only rank 0 has it.
        items: what the tensors are.
        tensors: of this rank's file, in order.
        values: what comes after them.
    """

    plan: Plan | None
    items: Sequence[Item]
    tensors: Sequence[torch.Tensor]
    values: Sequence[staging.Source]

    def content(self, image: staging.Image | None) -> Content:
        """The bytes of this rank's file.

        Args:
            image: holds a copy of the tensors; None: they are read where they are.
        """

        def sources() -> Iterator[staging.Source]:
            yield from image.sources() if image else map(staging.of_tensor, self.tensors)
            yield from self.values

        size = image.size if image else sum(map(staging.size_of, self.items))
        return Content(size + sum(value.size for value in self.values), sources)


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a file.

    Attributes:
        size: how many.
        sources: gives the parts, one after the other.
    """

    size: int
    sources: Callable[[], Iterator[staging.Source]]


class Collector:
    """Asks the entries for their state, and agrees with the other ranks who writes what."""

    def __init__(self, entries: Entries) -> None:
        """Knows of no plan yet."""
        self._entries = entries
        self._mine: tuple[Item, ...] = ()
        self._said = Said()
        self._file: list[Item] | None = None  # what this rank writes; None: it is not agreed upon
        self._plan: Plan | None = None  # of all, on rank 0
        self._plans = Plans()

    def forget(self) -> None:
        """The ranks are others from now on."""
        self._file = None

    def collect(self, peers: Peers) -> Collected:
        """This rank's part of the state as it is now, by reference.

        Args:
            peers: all ranks, which do the same.

        Raises:
            CheckpointError: the state of a rank cannot be saved; the same on every rank.
        """
        state: dict[str, Any] = {}
        failed: list[Exception] = []

        def describe() -> bool:
            try:
                state.update(self._entries.state(peers.rank))
                changed = self._file is None or not self._is_as_before(state)
                if changed:
                    self._file = None  # no plan of before fits, even if none can be made now
                    differing = self._entries.may_differ()
                    self._mine = tuple(
                        staging.describe(key, value, may_differ=key in differing)
                        for key, value in state.items()
                    )
                    self._said = say(self._mine, peers.rank, peers.world)
            except CheckpointError:
                raise
            except (OSError, MemoryError, torch.OutOfMemoryError) as error:
                raise CheckpointFailed(
                    f"rank {peers.rank} cannot take its state: {error!r}"
                ) from error
            except Exception as error:
                failed.append(error)
                raise CheckpointUsageError(
                    f"rank {peers.rank} has no state to save: {error!r}"
                ) from error
            return changed

        try:
            changes = peers.on_each(describe)
        except CheckpointError:
            self._file = None
            if failed:
                raise failed[0] from None  # it is this rank's own, and shows where it comes from
            raise
        items = self._file
        if items is None or any(changes):
            self._file = None
            self._plan, rows = agree(self._plans, peers, self._said)
            items = self._file = [self._mine[row] for row in rows]
        return Collected(
            self._plan,
            [item for item in items if item.dtype],
            [staging.local(state[item.key]) for item in items if item.dtype],
            [staging.of_value(state[item.key]) for item in items if not item.dtype],
        )

    def _is_as_before(self, state: dict[str, Any]) -> bool:
        return len(state) == len(self._mine) and all(
            staging.matches(item, key, value)
            for item, (key, value) in zip(self._mine, state.items(), strict=True)
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that is whole in storage.

    Attributes:
        which: checkpoint holds it.
        bytes: that all ranks have written.
        before: it was whole already, and nothing was written.
    """

    which: CheckpointId
    bytes: int
    before: bool = False


@dataclass(frozen=True, slots=True)
class Saving:
    """One save.

    Attributes:
        storage: where to.
        tenure: gives the term; rank 0's counts.
        draft: what the manifest will say; term and files follow.
        plan: who writes what; only rank 0 has it.
        description: says what is written beside the files of the ranks.
        life: of the tenure, when this began.
    """

    storage: Storage
    tenure: Tenure
    draft: Manifest
    plan: Plan | None
    description: Description
    life: int = 0

    def run(
        self,
        peers: Peers,
        content: Content,
        *,
        alone: bool,
        advance: Callable[[int], None] = lambda count: None,
    ) -> Saved:
        """Saves.

        Whatever goes wrong before all ranks know of the end, the term is used up: nobody may take
        what was left there for a part of the next save.

        Args:
            peers: all ranks, which do the same.
            content: this rank's file.
            alone: training waits for it.
            advance: hears how many bytes more this rank is about to write; raises if the save is
                not wanted any more.

        Returns:
            What it has become. If a peer dies before it has heard of that, rank 0 still knows.

        Raises:
            CheckpointError: a rank could not write, or was left behind by a newer term; the same on
                every rank, and nothing is left.
            Exception: a peer is gone, or the save is not wanted any more.
        """
        which: CheckpointId | None = None
        committed, term, life = False, 0, self.life

        def begin() -> list[int]:
            nonlocal which
            self.tenure.check_life(life)
            found = self.tenure.whole(self.draft.step)
            if found is None:
                which = found = self.tenure.create(self.draft.step, self.draft.entries)
            return [found.term, found.step, which is None]

        def write() -> FileRecord | None:
            if not content.size:
                return None
            made, name = CheckpointId(term, step), file_name(peers.rank)
            file = (self.storage, made, name, content.size, content.sources())
            return write_file(*file, alone=alone, advance=advance)

        def commit() -> None:
            nonlocal committed
            advance(0)
            self.tenure.check_life(life)
            self._commit(CheckpointId(term, step), written.records)
            committed = True
            self.tenure.check_life(life)
            self.tenure.committed(CheckpointId(term, step))

        try:
            term, step, before = peers.on_first(told(begin))
            self.tenure.check_life(life)
            self.tenure.hear(CheckpointId(term, step))
            if before:
                return Saved(CheckpointId(term, step), 0, before=True)
            written = written_by_all(peers, write)
            size = sum(file.bytes for file in written.files if file)
            peers.on_first(told(commit))
            return Saved(CheckpointId(term, step), size)
        except BaseException as error:  # an interrupt of the program, too
            if peers.rank == 0:
                if life == self.tenure.life:
                    self.tenure.use_up()
                if committed and isinstance(error, Exception):
                    return Saved(CheckpointId(term, step), size)
                if which is not None and not committed:
                    self.storage.discard(which)
            if term and isinstance(error, CheckpointFailed):
                peers.on_first(told(lambda: self._look_for_newer(term)))
            raise

    def _look_for_newer(self, term: int) -> None:
        """Finds out whether a save failed because a newer term has cleared away what it wrote."""
        with suppress(CheckpointFailed):  # the first failure says more
            self.storage.check_term(term)

    def _commit(self, which: CheckpointId, files: Sequence[FileRecord | None]) -> None:
        assert self.plan is not None
        if (rank := not_as_planned(self.plan, files)) is not None:
            raise CheckpointFailed(
                f"cannot save to {self.storage.place(which)}: what rank {rank} has written is "
                "not what was planned"
            )
        described = self.description.describe(self.plan, files)
        beside = [write_beside(self.storage, which, one) for one in described.beside]
        whole = (*described.files, *beside)
        self.storage.commit(replace(self.draft, term=which.term, files=whole, saved_at=time.time()))
