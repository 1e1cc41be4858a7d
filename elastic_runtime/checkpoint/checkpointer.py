"""``Checkpointer``: saves the state of a job so that it is either whole or not there, and resumes.

All ranks save at the same step, and leave at the same step when they are asked to; see
``worker.agreement`` for how they agree. ``save/`` is how a save goes, ``load/`` how a load does,
``format/manifest.py`` what a checkpoint is; the walk from ``step`` to a committed checkpoint is in
docs/architecture.md.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from elastic_runtime.checkpoint.entries import usage_checks
from elastic_runtime.checkpoint.entries.committed_entries import CommittedEntries, names_missing
from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.load.resume_choice import LatestStateLoader
from elastic_runtime.checkpoint.save.save_executor import SaveExecutor
from elastic_runtime.checkpoint.save.save_scheduler import SaveScheduler
from elastic_runtime.checkpoint.save.save_timetable import SaveTimetable, parse_limit
from elastic_runtime.checkpoint.save_interval import Every, Interval, parse_every
from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
from elastic_runtime.checkpoint.storage.first_contact import of_a_job
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.retention import parse_retention
from elastic_runtime.errors import (
    CheckpointFailed,
    CheckpointUsageError,
)
from elastic_runtime.protocol.messages import EXIT_WORKER_LEFT
from elastic_runtime.worker.agreement import NOTHING_FORESEEN, Agreement, Foreseen, Wish
from elastic_runtime.worker.context import WorkerContext, context
from elastic_runtime.worker.fast_exit import end_on_request
from elastic_runtime.worker.peers import GlooGroups, Peers
from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RecoveryKind,
    StateVersion,
)

if TYPE_CHECKING:
    import os
    from collections.abc import MutableMapping, Sequence
    from datetime import timedelta

    from elastic_runtime.checkpoint.storage.retention import Retention
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice


@dataclass(frozen=True, slots=True)
class _ConnectedRanks:
    """The ranks, once they are connected."""

    peers: Peers
    agreement: Agreement


class Checkpointer:
    """Saves and restores the entries of a job; a checkpoint can be loaded with any world size.

    Example::

        ckpt = Checkpointer("runs/digits", {"model": model, "optim": optim}, every="30s", keep=3)
        ckpt.resume()
        for batch in loader:
            ...
            ckpt.step()
        ckpt.save()
        ckpt.close()

    A save copies the state and writes the copy in the background; at most one save runs at a time.
    All ranks must call every method at the same point of the program.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        entries: MutableMapping[str, Any],
        *,
        every: Interval | Sequence[Interval] | None = None,
        keep: int | None = None,
        keep_every: int | str | timedelta | None = None,
        sync: bool = False,
        snapshot_every: Interval | Sequence[Interval] | None = None,
        on_save_error: Literal["continue", "raise"] = "continue",
        max_save_age: Interval | Sequence[Interval] | None = None,
    ) -> None:
        """Checks the settings; the directory is not touched before the first call of a method.

        Args:
            directory: where all checkpoints of the job are: a path or a URL that fsspec knows
                (``s3://bucket/run``). All nodes must see the same one.
            entries: what to save, by name: modules, optimizers, generators, anything with
                ``state_dict`` and ``load_state_dict``, and plain values; ``PerRank`` for a value
                that each rank has of its own. Plain values are read from this mapping at each
                save, and ``resume`` replaces them in it.
            every: how often to save: steps (``10``, ``"10 steps"``), a time (``"30s"``), or both
                (``"100 steps, 5m"``, ``(100, "5m")``), whichever comes first. None: only when
                ``save`` is called or the job is asked to stop. The first save of a job that
                did not resume follows soon after its first step.
            keep: how many of the newest checkpoints to keep, at least 1; None: all of them.
            keep_every: which older ones are never deleted: one for every so many steps
                (``1000``), for every such time (``"6h"``), or both (``"1000 steps, 6h"``).
            sync: do no save in the background: each one stops training until it is durable,
                and needs no memory for a copy.
            snapshot_every: how often to take a snapshot in the memory of the agents, written as
                ``every``. It is taken at the next step that all ranks agree on, and skipped while
                a save is running.
            on_save_error: what to do when a save fails for a reason that may pass, such as a full
                disk. ``"continue"``: report an event and try again sooner; ``"raise"``: raise
                ``CheckpointFailed`` at a later step.
            max_save_age: with ``"continue"``, how long saves may fail before ``step`` raises an
                error, so that the job is restarted: a time or steps, written as ``every``. None:
                ten intervals, but at least a minute; if ``every`` is None, an hour after the first
                failure.

        Raises:
            CheckpointUsageError: a setting or an entry cannot be used.
        """
        usage_checks.check_arguments(entries, on_save_error)
        interval = parse_every(every)
        limit = parse_limit(max_save_age, interval)
        retention = parse_retention(keep, keep_every)
        snapshot_interval = parse_every(snapshot_every, "snapshot_every")
        self._objects, self._sync = entries, sync
        self._context: WorkerContext = context()
        # The first rank finds out whether it can be used, and the others wait for it.
        first = of_a_job(self._context.note, _leave_if_asked) if self._context.rank == 0 else None
        self._storage = open_storage(directory, first)
        timetable = SaveTimetable.at_start(interval, limit, time.monotonic())
        self._assemble(retention, snapshot_interval, timetable, raises=on_save_error == "raise")

    def _assemble(
        self, retention: Retention, snapshots: Every, timetable: SaveTimetable, *, raises: bool
    ) -> None:
        """Makes what saves, takes snapshots and loads."""
        self._gloo: GlooGroups | None = None
        self._state: State | None = None
        self._is_over = False  # elastic.run is, which it was given
        self._group: _ConnectedRanks | None = None
        self._steps = 0
        self._entries = Entries(self._objects)
        self._committed = CommittedEntries(self._objects)
        self._context.accept_leave_requests()
        storage, entries, here = self._storage, self._entries, self._context
        self._executor = SaveExecutor(storage, self._objects, entries, retention, here)
        self._scheduler = SaveScheduler(self._executor, timetable, sync=self._sync, raises=raises)
        self._snapshots = SnapshotScheduler(storage, self._executor.term, snapshots, here)
        self._loader = LatestStateLoader(storage, self._executor, self._snapshots, entries, here)

    def __repr__(self) -> str:
        """Shows the place, the names of the entries, and the step."""
        names = ", ".join(self._objects)
        return f"{type(self).__name__}({self._storage.where!r}: {names}; step {self._steps})"

    # What users call

    @property
    def steps(self) -> int:
        """How many steps the job has made, counted over all its restarts.

        It can be set by a script that counts its steps itself.

        Raises:
            UsageError: it was set, and ``elastic.run`` uses this checkpointer and counts the steps.
        """
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._is_the_scripts("steps was set")
        self.count(value)

    def resume(self, *, strict: bool = True) -> int:
        """Loads the newest complete checkpoint, if there is any, from memory or from storage.

        A damaged one is reported with an event, and the next older one is tried.

        Args:
            strict: whether the checkpoint must have exactly the keys of this program. False: keys
                that it lacks keep their present values, and keys that only it has are ignored; an
                event names both.

        Returns:
            The step at which it was saved; 0 if there is no checkpoint and a new run begins.

        Raises:
            DamagedCheckpoint: there are checkpoints, but all of them are damaged.
            CheckpointError: the directory cannot be used, or the checkpoint does not fit.
            UsageError: ``elastic.run`` uses this checkpointer and loads by itself.
        """
        self._is_the_scripts("resume() was called")
        found = self._load(strict=strict)
        return found.step if found is not None else 0

    def step(self) -> None:
        """Counts one step, and saves if a save is due; ends the process if the job must stop.

        To be called after each complete step, on all ranks.

        Raises:
            SystemExit: the job was asked to stop; the state of this step is saved.
            CheckpointFailed: the job was asked to stop, and the state could not be saved; or no
                save has succeeded for ``max_save_age``; or one has failed, with
                ``on_save_error="raise"``. Older checkpoints are untouched.
            CheckpointUsageError: the state can never be saved, such as a value of a kind that
                cannot be loaded again.
            UsageError: an entry belongs to another checkpointer as well, or ``elastic.run`` uses
                this checkpointer and counts the steps.
        """
        self._is_the_scripts("step() was called")
        group = self._ready()
        self.count(self._steps + 1)
        self._committed.commit()
        self._context.report_step(self.steps)
        agreed = group.agreement.step(lambda: Wish.TRAINS | self._wishes(group.peers))
        if Wish.LEAVE in agreed:
            self.save(sync=True)
            end_on_request(EXIT_WORKER_LEFT, has_agent=self._context.has_agent)
        self.act_on(agreed)

    def save(self, *, sync: bool = False) -> None:
        """Saves the state of the present step, unless it is saved already.

        It first waits for a save that is still running, and returns when the state is copied; the
        copy is written in the background. ``step()`` counts the steps, or the script sets
        ``steps``.

        Args:
            sync: return only when the state is durable. No copy is made then.

        Raises:
            CheckpointFailed: with ``sync``, the state could not be saved in several tries;
                otherwise see ``step``. Older checkpoints are untouched.
            CheckpointUsageError: the state can never be saved.
            UsageError: step 0 was to be saved for the second time, as the steps are not counted; or
                ``elastic.run`` has returned, and this step is not saved.
        """
        if self._is_over:
            if self._scheduler.begun == self._executor.saved_step == self.steps:
                return
            usage_checks.refuse_late(self.steps, self._storage.where)
        peers = self._ready().peers
        at_once = sync or self._sync
        if self._scheduler.begun == self.steps and not at_once:
            if not self.steps and self._state is None:
                usage_checks.refuse_uncounted()
            return
        if at_once:
            self._scheduler.save_for_certain(peers, self.steps)
        else:
            self._scheduler.save_soon(peers, self.steps)
        self._ready().agreement.restart_clock()

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

    def close(self) -> None:
        """Waits for the save in the background and frees all memory; saves nothing new.

        For a program that makes no more steps.

        Raises:
            CheckpointFailed: the save in the background failed, in several tries.
        """
        try:
            if self._group is not None:
                self._group.agreement.close()
            self._executor.close()
            self._scheduler.report_end(self.steps)
        finally:
            self._context.refuse_leave_requests()

    # What ``elastic.run`` calls

    def count(self, steps: int) -> None:
        """Sets how many steps the job has made; fewer than before if it has gone back."""
        if steps < self._steps:
            self._scheduler.go_back()
        self._steps = steps

    def attach(self, state: State, gloo: GlooGroups) -> None:
        """Lets ``elastic.run`` use this checkpointer in a new world: it counts steps and saves.

        A save that was running in the world before is given up, and soon done again.

        Args:
            state: what is trained; all that it needs must be among the entries.
            gloo: the groups of all ranks, valid until the next call.

        Raises:
            CheckpointUsageError: a part of the state is not saved.
        """
        if missing := names_missing(self._objects, state):
            raise CheckpointUsageError(
                f"the checkpointer does not save {', '.join(missing)}; add them to its entries, or "
                "a checkpoint would not be the whole state"
            )
        ours = state._settings is not None and state.with_generators
        self._entries.add_values(state.saved_values(), generators=ours)
        self._state = state
        lost = self._executor.enter(gloo)
        self._snapshots.enter()
        self._gloo = gloo
        self._group = None
        self._scheduler.enter(lost=lost)

    def detach(self) -> None:
        """Ends the use by ``elastic.run``: the groups are gone, and nothing more can be saved."""
        if self._state is not None:
            self._scheduler.report_end(self.steps)
            self._is_over = True
            self._executor.enter(None)
            self._snapshots.enter()
            self._gloo = self._group = None

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
            strict: see ``resume``.

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
        received = self._ready().peers.rank not in choice.sources
        base = CheckpointId(*choice.base)
        self._executor.term.recover_from(base, choice.term, take_new_term=choice.asked or received)

    def wishes(self) -> Wish:
        """What this rank wants all ranks to do."""
        return self._wishes(self._ready().peers)

    def foreseen(self) -> Foreseen:
        """When this rank will wish something, as far as it knows that."""
        if self._ready().peers.rank:
            return NOTHING_FORESEEN
        return self._scheduler.foreseen().or_before(self._snapshots.foreseen(self.steps))

    def act_on(self, agreed: Wish) -> None:
        """Does what all ranks agreed on at a step: notes a failed save, saves, takes a snapshot.

        Args:
            agreed: the combined wishes of all ranks at this step.

        Raises:
            CheckpointError: see ``step``.
        """
        group = self._ready()
        # Mostly nothing is agreed, and looking for flags takes a while.
        save, failed = (Wish.SAVE in agreed, Wish.FAILED in agreed) if agreed else (False, False)
        if self._scheduler.act_on(group.peers, self.steps, failed=failed, agreed=save):
            group.agreement.restart_clock()
        self._snapshot(agreed)

    def _snapshot(self, agreed: Wish) -> None:
        """Takes a snapshot if all ranks agreed on it and no rank has a save running."""
        if not agreed or Wish.SNAPSHOT not in agreed:
            return
        self._snapshots.rest(self.steps)
        # The wishes are those of the step before; a save that began since is known on all ranks.
        peers = self._ready().peers
        if Wish.BUSY in agreed or self._executor.began_since(self.steps - 1):
            return
        if not self._scheduler.collect_result(peers, self.steps):
            return
        with suppress(CheckpointFailed):  # an event was reported, and training continues
            self._executor.snapshot_in_background(peers, self.steps, self._snapshots)

    # What all ranks do

    def _load(self, *, strict: bool, over: CheckpointId | None = None) -> CheckpointId | None:
        """Loads the newest complete checkpoint; None if there is none, and nothing has changed."""
        group = self._ready()
        self._executor.ignore_result()
        found = self._loader.load(group.peers, self._give_up_memory, strict=strict, over=over)
        if found is not None:
            self.count(found.step)
            self._scheduler.resumed(self.steps, stored=self._executor.saved_step is not None)
        if found is not None or over is None:
            self._snapshots.rest(self.steps)
        group.agreement.restart_clock()
        return found

    def _give_up_memory(self, step: int) -> None:
        """Marks the memory as unusable: a load that is interrupted leaves it half overwritten."""
        state = self._state
        if state is not None and state.rank_status().condition is not MemoryCondition.NEW:
            state.give_up(step)

    def _is_the_scripts(self, what: str) -> None:
        """Raises UsageError if ``elastic.run`` uses this checkpointer and does this itself."""
        if self._state is not None:
            usage_checks.refuse_in_place(what, self._storage.where)

    def _ready(self) -> _ConnectedRanks:
        """Connects the ranks at the first use, when torch.distributed is certainly initialized."""
        if self._state is None and self._context.in_place:
            usage_checks.refuse_beside(self._storage.where)
        if self._group is None:
            peers = Peers(self._gloo.group if self._gloo else None)
            if not self._storage.shared and (peers.world > 1 or self._context.has_agent):
                raise CheckpointUsageError(
                    f"{self._storage.where} is in the memory of one process: no other rank sees "
                    "it, and it is lost when the process ends; choose a place that all nodes share"
                )
            self._scheduler.check_place(peers, self.steps)
            if peers.rank > 0:
                self._executor.term.release()
            self._group = _ConnectedRanks(peers, Agreement(peers.group, self.foreseen))
        return self._group

    def _wishes(self, peers: Peers) -> Wish:
        rank = peers.rank
        wishes = Wish.LEAVE if self._context.leave_requested.is_set() else Wish.NOTHING
        if self._executor.has_failed:
            wishes |= Wish.FAILED
        if self._snapshots.wanted:
            self._executor.leave_behind()
            wishes |= Wish.BUSY if self._executor.is_busy else Wish.NOTHING
            wishes |= self._snapshots.wish(self.steps) if rank == 0 else Wish.NOTHING
        if rank == 0 and self._scheduler.wishes_save(peers):
            wishes |= Wish.SAVE
        return wishes


def _leave_if_asked() -> None:
    """Ends the process, during a wait in which there is nothing to save yet, if it must stop."""
    if (here := context()).leave_requested.is_set():
        end_on_request(EXIT_WORKER_LEFT, has_agent=here.has_agent)
