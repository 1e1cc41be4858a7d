"""``Checkpointer``: saves a State so that it is either whole or not there, and loads the newest.

All ranks save at the same commit, as they agree on it (``worker.agreement``). ``save/`` is how a
save goes, ``load/`` how a load does, ``format/manifest.py`` what a checkpoint is; the walk from a
commit to a committed checkpoint is in docs/architecture.md.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.load.resume_choice import LatestStateLoader
from elastic_runtime.checkpoint.save.save_executor import SaveExecutor
from elastic_runtime.checkpoint.save.save_scheduler import SaveScheduler
from elastic_runtime.checkpoint.save.save_timetable import SaveTimetable, parse_limit
from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
from elastic_runtime.checkpoint.storage.first_contact import of_a_job
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.retention import parse_retention
from elastic_runtime.errors import CheckpointFailed, CheckpointUsageError
from elastic_runtime.protocol.messages import EXIT_WORKER_LEFT
from elastic_runtime.worker.agreement import NOTHING_FORESEEN, Foreseen, Wish
from elastic_runtime.worker.context import context
from elastic_runtime.worker.fast_exit import end_on_request
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RecoveryKind,
    StateVersion,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from datetime import timedelta

    from elastic_runtime.checkpoint.save_interval import Interval
    from elastic_runtime.parts.saved_parts import SavedParts
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.peers import GlooGroups
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice


class Checkpointer:
    """Does what ``State.checkpoints`` asks for, as ``elastic.run`` calls it.

    A save copies the state and writes the copy in the background; at most one save runs at a time.
    All ranks must call every method at the same point of the program.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        parts: SavedParts,
        *,
        every: Interval | Sequence[Interval] | None = None,
        keep: int | None = None,
        keep_every: int | str | timedelta | None = None,
        sync: bool = False,
        snapshots: Interval | Sequence[Interval] | None = None,
        raises: bool = False,
        max_age: Interval | Sequence[Interval] | None = None,
    ) -> None:
        """Checks the settings; the place is not touched before ``attach``.

        Args:
            place: where all checkpoints of the job are.
            parts: what is saved.
            every, keep, keep_every, sync, snapshots, max_age: see ``State.checkpoints``.
            raises: a save that fails is an error.

        Raises:
            CheckpointUsageError: a setting cannot be used.
        """
        interval = parse_every(every)
        limit = parse_limit(max_age, interval, "max_age")
        retention = parse_retention(keep, keep_every)
        snapshot_interval = parse_every(snapshots, "snapshots")
        self._sync = sync
        here = self._context = context()
        # The first rank finds out whether it can be used, and the others wait for it.
        first = of_a_job(here.note, _leave_if_asked) if here.rank == 0 else None
        storage = self._storage = open_storage(place, first)
        timetable = SaveTimetable.at_start(interval, limit, time.monotonic())
        self._state: State | None = None
        self._peers: Peers | None = None
        self._steps = 0
        here.accept_leave_requests()
        self._executor = SaveExecutor(storage, parts, retention, here)
        self._scheduler = SaveScheduler(self._executor, timetable, sync=sync, raises=raises)
        self._snapshots = SnapshotScheduler(storage, self._executor.term, snapshot_interval, here)
        self._loader = LatestStateLoader(storage, self._executor, self._snapshots, parts, here)

    # The ranks

    def attach(self, state: State, gloo: GlooGroups) -> None:
        """Saves and loads on these ranks from now on.

        A save that was running in the world before is given up, and soon done again.

        Args:
            state: what is trained.
            gloo: the groups of all ranks, valid until the next call.

        Raises:
            CheckpointUsageError: the place is of no use for a job.
        """
        self._state = state
        lost = self._executor.enter(gloo)
        self._snapshots.enter()
        self._scheduler.enter(lost=lost)
        self._peers = None
        self._gloo = gloo

    def detach(self) -> None:
        """Ends the use: the groups are gone, and nothing more can be saved."""
        if self._state is not None:
            self._scheduler.report_end(self._steps)
            self._executor.close()
            self._snapshots.enter()
        self._state = self._peers = None
        if not self._context.has_agent:
            self._context.refuse_leave_requests()

    def count(self, steps: int) -> None:
        """Sets how many steps are committed; fewer than before if the job has gone back."""
        if steps < self._steps:
            self._scheduler.go_back()
        self._steps = steps

    # Saving

    def save(self, *, sync: bool = False) -> None:
        """Saves the present step, unless it is saved already.

        It first waits for a save that is still running, and returns when the state is copied.

        Args:
            sync: return only when the state is durable. No copy is made then.

        Raises:
            CheckpointFailed: with ``sync``, the state could not be saved in several tries. Older
                checkpoints are untouched.
            CheckpointUsageError: the state can never be saved.
        """
        if sync or self._sync:
            self._scheduler.save_for_certain(self._ready(), self._steps)
        elif self._scheduler.begun != self._steps:
            self._scheduler.save_soon(self._ready(), self._steps)

    def save_anew(self) -> None:
        """Saves the present step for certain, in a new term: what is saved of it is outdated."""
        self._scheduler.go_back()
        self._executor.term.use_up()
        self.save(sync=True)

    def wait(self) -> None:
        """Waits until the save in the background is durable; returns at once if there is none.

        A save that fails is tried again several times, from the same copy of the state.

        Raises:
            CheckpointFailed: no try succeeded; older checkpoints are untouched.
        """
        self._scheduler.wait()

    # What is saved, and what memory is worth beside it

    @property
    def saved_step(self) -> int:
        """The newest step that this rank knows to be durable in storage.

        0 if it knows of none; there may be a checkpoint of an earlier start of the job.
        """
        return self._executor.saved_step or 0

    @property
    def term(self) -> int:
        """The newest term in which this rank's state was saved, or was about to be; 0: none."""
        return self._executor.term.newest_known

    @property
    def base(self) -> StateVersion:
        """A save that this rank's memory is known to contain; (0, 0) if there is none."""
        base = self._executor.term.base
        return StateVersion(base.term, base.step)

    def load(self, over: StateVersion | None, *, strict: bool = True) -> StateVersion | None:
        """Loads the newest saved state, if it is newer than what the ranks have in memory.

        Args:
            over: the version in memory, which stays untouched until a newer one is known to be
                complete; None: memory has no state.
            strict: whether it must have exactly the keys of this program.

        Returns:
            The version that was loaded; None if there is nothing newer.

        Raises:
            DamagedCheckpoint: there are only damaged checkpoints, and no state in memory.
            CheckpointError: the directory cannot be used, or the checkpoint does not fit.
        """
        floor = None if over is None else CheckpointId(*over)
        found = self._load(strict=strict, over=floor)
        return None if found is None else StateVersion(found.term, found.step)

    def newest(self) -> StateVersion | None:
        """The newest checkpoint in storage that has a manifest; one rank may ask alone.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        found = self._loader.stored()
        return StateVersion(found[0].term, found[0].step) if found else None

    def received(self, choice: RecoveryChoice) -> None:
        """Notes that this rank has received the state; a fault may still prevent ``recovered``.

        Args:
            choice: the state that all ranks continue from.
        """
        self._executor.term.recover_from(
            CheckpointId(*choice.base), choice.term, take_new_term=True
        )

    def recovered(self, choice: RecoveryChoice) -> None:
        """Notes that all ranks have the same state now, and continue from it.

        Args:
            choice: the state; the same choice on all ranks.
        """
        self.count(choice.step)
        if choice.kind is RecoveryKind.SAVED:
            return  # all of them have loaded it
        received = self._ready().rank not in choice.sources
        base = CheckpointId(*choice.base)
        self._executor.term.recover_from(base, choice.term, take_new_term=choice.asked or received)

    # What all ranks agree on at a commit

    def wishes(self) -> Wish:
        """What this rank wants all ranks to do."""
        rank, wishes = self._ready().rank, Wish.NOTHING
        if self._executor.has_failed:
            wishes |= Wish.FAILED
        if self._snapshots.wanted:
            self._executor.leave_behind()
            wishes |= Wish.BUSY if self._executor.is_busy else Wish.NOTHING
            wishes |= self._snapshots.wish(self._steps) if rank == 0 else Wish.NOTHING
        if rank == 0 and self._scheduler.wishes_save(self._ready()):
            wishes |= Wish.SAVE
        return wishes

    def foreseen(self) -> Foreseen:
        """When this rank will wish something, as far as it knows that."""
        if self._ready().rank:
            return NOTHING_FORESEEN
        return self._scheduler.foreseen().or_before(self._snapshots.foreseen(self._steps))

    def act_on(self, agreed: Wish) -> bool:
        """Does what all ranks agreed on at a commit: notes a failed save, saves, takes a snapshot.

        Args:
            agreed: the combined wishes of all ranks.

        Returns:
            Whether a save was due, which takes a while.

        Raises:
            CheckpointFailed: no save has succeeded for ``max_age``; or one has failed, with
                ``raises``. Older checkpoints are untouched.
            CheckpointUsageError: the state can never be saved.
        """
        # Mostly nothing is agreed, and looking for flags takes a while.
        save, failed = (Wish.SAVE in agreed, Wish.FAILED in agreed) if agreed else (False, False)
        due = self._scheduler.act_on(self._ready(), self._steps, failed=failed, agreed=save)
        if agreed and Wish.SNAPSHOT in agreed:
            self._snapshot(busy=Wish.BUSY in agreed)
        return due

    def _snapshot(self, *, busy: bool) -> None:
        """Takes a snapshot, if no rank has a save running."""
        self._snapshots.rest(self._steps)
        # The wishes are those of the step before; a save that began since is known on all ranks.
        if busy or self._executor.began_since(self._steps - 1):
            return
        if not self._scheduler.collect_result(self._ready(), self._steps):
            return
        with suppress(CheckpointFailed):  # an event was reported, and training continues
            self._executor.snapshot_in_background(self._ready(), self._steps, self._snapshots)

    # Inside

    def _load(self, *, strict: bool, over: CheckpointId | None) -> CheckpointId | None:
        peers = self._ready()
        self._executor.ignore_result()
        found = self._loader.load(peers, self._give_up_memory, strict=strict, over=over)
        if found is not None:
            self.count(found.step)
            self._scheduler.resumed(self._steps, stored=self._executor.saved_step is not None)
        if found is not None or over is None:
            self._snapshots.rest(self._steps)
        return found

    def _give_up_memory(self, step: int) -> None:
        """Marks the memory as unusable: a load that is interrupted leaves it half overwritten."""
        state = self._state
        if state is not None and state.rank_status().condition is not MemoryCondition.NEW:
            state.give_up(step)

    def _ready(self) -> Peers:
        """All ranks; at the first use in a world it is looked whether they can save."""
        if self._peers is None:
            peers = Peers(self._gloo.group)
            if not self._storage.shared and (peers.world > 1 or self._context.has_agent):
                raise CheckpointUsageError(
                    f"{self._storage.where} is in the memory of one process: no other rank sees "
                    "it, and it is lost when the process ends; choose a place that all nodes share"
                )
            self._scheduler.check_place(peers, self._steps)
            if peers.rank > 0:
                self._executor.term.release()
            self._peers = peers
        return self._peers


def _leave_if_asked() -> None:
    """Ends the process, during a wait in which there is nothing to save yet, if it must stop."""
    if (here := context()).leave_requested.is_set():
        end_on_request(EXIT_WORKER_LEFT, has_agent=here.has_agent)
