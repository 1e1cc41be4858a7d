"""One save: from each rank's file to a checkpoint that exists, and the removal of older ones.

::

    begin (rank 0) ─▶ write (each rank) ─▶ compare, commit (rank 0) ─▶ delete old ones (rank 0)

All ranks take each step together and learn of each other's failures, so that all of them end a
save alike. It runs in training's thread, or in the background.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.dcp_metadata import not_as_planned
from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord, Manifest
from elastic_runtime.checkpoint.format.outline_file import file_name
from elastic_runtime.checkpoint.progress_display import ProgressDisplay
from elastic_runtime.checkpoint.save.background_thread import Abandoned, failing_for_all
from elastic_runtime.checkpoint.save.file_writer import (
    write_description_file,
    write_file,
    written_by_all,
)
from elastic_runtime.checkpoint.storage.catalog import prune, remove_unfinished
from elastic_runtime.errors import CheckpointError, CheckpointFailed
from elastic_runtime.events.checkpoint_events import (
    CheckpointCommitted,
    CheckpointPruneFailed,
    CheckpointSaved,
    CheckpointSaveDiscarded,
    CheckpointSaveFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.checkpoint.format.description import Description
    from elastic_runtime.checkpoint.format.write_plan import WritePlan
    from elastic_runtime.checkpoint.save.background_thread import Task
    from elastic_runtime.checkpoint.save.file_writer import Written
    from elastic_runtime.checkpoint.save.rank_share import FileContent
    from elastic_runtime.checkpoint.save.save_term import SaveTerm
    from elastic_runtime.checkpoint.storage.retention import Retention
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.worker.context import WorkerContext
    from elastic_runtime.worker.peers import Peers


@dataclass(frozen=True, slots=True)
class SaveTarget:
    """Where a job saves to, the same for all its saves.

    Attributes:
        storage: where to.
        term: that this process holds there; rank 0's counts.
        retention: which checkpoints are kept.
        damaged: those that were found so while loading: they are not counted on.
        context: receives events.
    """

    storage: Storage
    term: SaveTerm
    retention: Retention
    damaged: set[CheckpointId]
    context: WorkerContext

    def note(self, peers: Peers, event: NotedEvent) -> None:
        """An event, from rank 0."""
        if peers.rank == 0:
            self.context.note(event)

    def report_failure(self, peers: Peers, step: int, error: CheckpointError) -> None:
        """An event: the state of a step could not be saved."""
        self.note(peers, CheckpointSaveFailed(self.storage.where, step, str(error)))


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that is complete in storage.

    Attributes:
        which: checkpoint holds it.
        bytes: that all ranks have written.
        before: it was whole already, and nothing was written.
    """

    which: CheckpointId
    bytes: int
    before: bool = False


class SaveRun:
    """One save; to be run once."""

    def __init__(
        self,
        target: SaveTarget,
        draft: Manifest,
        plan: WritePlan | None,
        description: Description,
        began: float,
        blocked: float | None = None,
    ) -> None:
        """Takes what is to be saved; nothing is written yet.

        Args:
            target: where to.
            draft: what the manifest will say; term and files follow.
            plan: who writes what; only rank 0 has it.
            description: says what is written beside the files of the ranks.
            began: when, by the monotonic clock.
            blocked: how many seconds training was stopped for it, if it runs beside.
        """
        self._target = target
        self._storage = target.storage
        self._term = target.term
        self._draft = draft
        self._plan = plan
        self._description = description
        self._began = began
        self._blocked = blocked
        self._generation = target.term.generation
        self._reset()

    def _reset(self) -> None:
        self._made: CheckpointId | None = None  # whose directory rank 0 has made
        self._which: CheckpointId | None = None  # what is being saved, once all ranks know it
        self._is_committed = False
        self._bytes = 0

    def run(self, peers: Peers, content: FileContent, task: Task | None = None) -> None:
        """Saves, says so, and deletes what is kept no longer.

        Args:
            peers: all ranks, which do the same.
            content: this rank's file.
            task: it runs in, beside training; None: training waits for it.

        Raises:
            CheckpointError: a rank could not write, or was left behind by a newer term; the same on
                every rank, and nothing is left.
            Exception: a peer is gone, or the save is not wanted any longer.
        """
        self._reset()
        step = self._draft.step
        note = self._target.context.note if peers.rank == 0 and task is None else None
        with ProgressDisplay(f"saving step {step}", content.size, note) as progress:
            try:
                saved = self._save(peers, content, progress, task)
            except CheckpointError as error:
                self._target.report_failure(peers, step, error)
                raise
            except Exception as error:
                why = "the world has changed" if isinstance(error, Abandoned) else str(error)
                reason = why.strip().split("\n")[0]
                discarded = CheckpointSaveDiscarded(self._storage.where, step, reason)
                self._target.note(peers, discarded)
                raise
        self._report_success(peers, saved)
        if peers.rank == 0:
            self._clean_up(peers, saved.which.term)

    def _save(
        self, peers: Peers, content: FileContent, progress: ProgressDisplay, task: Task | None
    ) -> Saved:
        """Begins, writes, commits.

        If anything goes wrong before all ranks know of the commit, the term is used up: files that
        were left there must not be taken for a part of the next save. If a peer dies before it has
        learned of the commit, rank 0 still knows.
        """

        def advance(count: int) -> None:
            progress.advance(count)
            if task is not None:
                task.check()

        try:
            term, step, before = peers.on_first(failing_for_all(self._begin))
            self._which = CheckpointId(term, step)
            self._term.check_generation(self._generation)
            self._term.about_to_save(self._which)
            if before:
                return Saved(self._which, 0, before=True)
            alone = task is None
            written = written_by_all(peers, lambda: self._write(peers, content, alone, advance))
            self._bytes = sum(file.bytes for file in written.files if file)
            peers.on_first(failing_for_all(lambda: self._commit(written, advance)))
            return Saved(self._which, self._bytes)
        except BaseException as error:  # an interrupt of the program, too
            if saved := self._end_failed(peers, error):
                return saved
            raise

    def _begin(self) -> list[int]:
        """On rank 0: finds out that the state is saved already, or makes a directory for it."""
        self._term.check_generation(self._generation)
        found = self._term.find_committed(self._draft.step)
        if found is None:
            self._made = found = self._term.create(self._draft.step, self._draft.entries)
        return [found.term, found.step, self._made is None]

    def _write(
        self, peers: Peers, content: FileContent, alone: bool, advance: Callable[[int], None]
    ) -> FileRecord | None:
        """On each rank: writes its file, if it has anything to write."""
        if not content.size:
            return None
        assert self._which is not None
        file = (self._storage, self._which, file_name(peers.rank), content.size, content.sources())
        return write_file(*file, alone=alone, advance=advance)

    def _commit(self, written: Written, advance: Callable[[int], None]) -> None:
        """On rank 0: writes what describes the files, and the manifest last."""
        which, files = self._which, written.records
        assert which is not None
        assert self._plan is not None
        advance(0)
        self._term.check_generation(self._generation)
        if (rank := not_as_planned(self._plan, files)) is not None:
            raise CheckpointFailed(
                f"cannot save to {self._storage.place(which)}: what rank {rank} has written is "
                "not what was planned"
            )
        described = self._description.describe(self._plan, files)
        beside = [write_description_file(self._storage, which, one) for one in described.beside]
        whole = (*described.files, *beside)
        manifest = replace(self._draft, term=which.term, files=whole, saved_at=time.time())
        self._storage.commit(manifest)
        self._is_committed = True
        self._term.check_generation(self._generation)
        self._term.note_committed(which)

    def _end_failed(self, peers: Peers, error: BaseException) -> Saved | None:
        """Clears up after a failure; what was saved, if it was committed in spite of it."""
        which = self._which
        if peers.rank == 0:
            if self._generation == self._term.generation:
                self._term.use_up()
            if self._is_committed and which is not None and isinstance(error, Exception):
                return Saved(which, self._bytes)
            if self._made is not None and not self._is_committed:
                self._storage.discard(self._made)
        if which is not None and isinstance(error, CheckpointFailed):
            peers.on_first(failing_for_all(lambda: self._look_for_newer(which.term)))
        return None

    def _look_for_newer(self, term: int) -> None:
        """Finds out whether a save failed because a newer term has cleared away what it wrote."""
        with suppress(CheckpointFailed):  # the first failure says more
            self._storage.check_term(term)

    def _report_success(self, peers: Peers, saved: Saved) -> None:
        now, step, context = time.monotonic(), self._draft.step, self._target.context
        self._term.last_saved = now, step
        if not saved.before:
            where, seconds = self._storage.where, now - self._began
            self._target.note(
                peers, CheckpointSaved(where, step, saved.bytes, seconds, self._blocked)
            )
        if peers.rank != 0 and context.has_agent:
            context.note(CheckpointCommitted(step))

    def _clean_up(self, peers: Peers, term: int) -> None:
        """On rank 0: deletes older checkpoints, and what unfinished saves have left."""
        target = self._target
        try:
            if target.retention.last is not None:
                self._term.set_newer_aside()  # what a writer that was left behind has finished
                prune(self._storage, target.retention, term, target.damaged)
            if self._term.cleared < term:
                if gone := remove_unfinished(self._storage, term):
                    self._term.report_removed(gone)
                self._term.cleared = term
        except (OSError, CheckpointError) as error:
            # The save has succeeded; what could not be deleted is tried again after the next one.
            target.note(peers, CheckpointPruneFailed(self._storage.where, str(error)))
