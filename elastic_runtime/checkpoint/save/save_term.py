"""The term under which this process saves: taken once, checked at each save, replaced if outdated.

A term is a number that only one process can take, by creating a file in the storage; the one with
the highest term is the only one that may commit there, so that a process that was stopped for a
while and then continues overwrites nothing. A checkpoint is named after term and step, and so
ordered.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import (
    CheckpointId,
    left_behind,
)
from elastic_runtime.checkpoint.save.background_thread import Abandoned
from elastic_runtime.checkpoint.storage.catalog import free_space
from elastic_runtime.checkpoint.storage.directory_owner import check_owner
from elastic_runtime.errors import CheckpointError
from elastic_runtime.events.checkpoint_events import CheckpointRestsRemoved, CheckpointSetAside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.worker.context import WorkerContext


class SaveTerm:
    """The term that this process holds, taken before its first save, and what it has saved in it.

    Attributes:
        place_checked: this job has made sure before that the place can be written.
        cleared: the term in which what was left of unfinished older saves was removed.
        last_saved: when the last save succeeded, by the monotonic clock, and of which step.
    """

    def __init__(self, storage: Storage, context: WorkerContext) -> None:
        """Remembers who would take a term where; none is taken yet."""
        self._storage = storage
        self._context = context
        self.place_checked = False
        self.cleared = 0
        self.last_saved: tuple[float, int] | None = None
        self._term = 0
        self._used_up = False
        self._owns_place = False
        self._known = 0
        self._committed: CheckpointId | None = None
        self._base = CheckpointId(0, 0)
        self._left = CheckpointId(0, 0)
        self._generation = 0

    @property
    def newest_known(self) -> int:
        """The newest term in which this process's state was saved, or was about to be."""
        return self._known

    @property
    def base(self) -> CheckpointId:
        """A save that this process's state is known to contain.

        Everything that is saved up to there is part of that state, or was set aside.
        """
        return self._base

    def acquire(self, entries: Sequence[str]) -> int:
        """The term, which is the newest one of the storage.

        Args:
            entries: the names of what is going to be saved.

        Raises:
            CheckpointError: another process has taken a newer one, none can be taken, or what is
                there belongs to another job.
        """
        if self._term:
            self._storage.check_term(self._term)
            if not self._used_up:
                return self._term
        else:
            self.check_place()
            if not self._owns_place:
                check_owner(self._storage, entries)
        holder = {
            "run": self._context.run,
            "incarnation": self._context.incarnation,
            "round": self._context.round,
            "host": socket.gethostname(),
        }
        # An attempt that fails half-way may leave a term file: it must not stop this process.
        self._term, generation, term = 0, self._generation, 0
        while term <= self._known:
            term = self._storage.take_term(holder)
            if generation != self._generation and term > self._term:
                self.release()  # the one that counts is no longer the newest
            self.check_generation(generation)
        self._left = self._base
        self._term, self._used_up = term, False
        self.set_newer_aside()
        with suppress(OSError, CheckpointError):  # the save may do without
            if gone := free_space(self._storage, term):
                self.report_removed(gone)
        return term

    def check_place(self) -> None:
        """Makes sure that the place can be written.

        Raises:
            CheckpointUsageError: it refuses this job at its first look, so that it always will.
            CheckpointFailed: it fails at present.
        """
        if self.place_checked or self._context.restarts:
            self._storage.prepare()
        else:
            self._storage.first_look()
        self.place_checked = True

    def create(self, step: int, entries: Sequence[str]) -> CheckpointId:
        """Makes the directory of a save; one that exists already is never used.

        Args:
            step: whose state it is.
            entries: the names of what is going to be saved.

        Raises:
            CheckpointError: see ``acquire``; or the directory cannot be made.
        """
        while True:
            made = CheckpointId(self.acquire(entries), step)
            if self._storage.create(made):
                return made
            self.use_up()  # the step was counted before, or something else was put there

    def note_committed(self, which: CheckpointId) -> None:
        """Takes note of a checkpoint that is whole, whether or not all ranks learn of it."""
        self._committed = which

    def find_committed(self, step: int) -> CheckpointId | None:
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
        """The job has gone back to an earlier step: the state of a later one is made again."""
        self._committed = None

    def about_to_save(self, which: CheckpointId) -> None:
        """Notes on each rank that all ranks are about to save this checkpoint.

        Whether or not it succeeds, their memory is at least as new. Each rank must note that before
        the checkpoint can be complete, so that every rank that may survive knows it.
        """
        self._base = max(self._base, which)
        self._known = max(self._known, which.term)

    def resume_from(self, which: CheckpointId) -> None:
        """What is in the storage is this job's: it has gone on from there, and from nothing newer.

        Args:
            which: what it has gone on from; what is saved from now on is of a newer term.
        """
        self._base = which
        self._known = max(self._known, which.term)
        self._owns_place = True
        # Later steps of the own term may be there, which the job continues without; and others may
        # have taken terms since, and saved nothing.
        self.release()

    def pass_over(self, which: CheckpointId) -> None:
        """This cannot be loaded at present, and the job continues without it.

        If it can later on, it is not newer than what was made meanwhile.
        """
        self._known = max(self._known, which.term)

    def recover_from(self, base: CheckpointId, known: int, *, take_new_term: bool) -> None:
        """All ranks continue from memory.

        Args:
            base: of that memory.
            known: the newest term that any of them knows of.
            take_new_term: others may have taken terms since this process took its own, and saved
                nothing: it was behind, or has asked and found nothing newer.
        """
        self._base = base
        self._known = max(self._known, known)
        self._owns_place = self._owns_place or known > 0
        if take_new_term or known > self._term:
            # Others have saved since, and it has come to know that: nothing of theirs is set aside.
            self.release()

    def set_newer_aside(self) -> None:
        """Sets aside what is newer than what this process continues from: it is not in its state.

        Raises:
            CheckpointError: the storage cannot be read or written.
        """
        found = left_behind(self._storage.names(), self._left, self._term)
        for which in found:
            if self._storage.has_manifest(which):
                base = self._left.name if self._left.term else "its beginning"
                why = f"the job continued from {base} in term {self._term}"
                self._storage.set_aside(which, {"why": why, "run": self._context.run})
                where = self._storage.where
                self._context.note(CheckpointSetAside(where, which.step, which.term, why))

    def report_removed(self, gone: Sequence[CheckpointId]) -> None:
        """Reports the removal of unfinished saves with an event."""
        names = [one.name for one in gone]
        self._context.note(CheckpointRestsRemoved(self._storage.where, names))

    def use_up(self) -> None:
        """Makes the next save take another term, so that it does not find files of this one."""
        self._used_up = True

    def release(self) -> None:
        """Drops the term: it may no longer be the newest, and the next save takes another."""
        self._term, self._used_up = 0, False
        self._committed = None

    def detach(self) -> None:
        """Detaches a save that still runs in another thread: it may no longer use this object."""
        self._generation += 1
        self.release()

    @property
    def generation(self) -> int:
        """Grows with each ``detach``; only saves of the present generation may use this object."""
        return self._generation

    def check_generation(self, generation: int) -> None:
        """Raises ``Abandoned`` if a save of that generation was detached since."""
        if generation != self._generation:
            raise Abandoned
