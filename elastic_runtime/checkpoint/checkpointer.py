"""``Checkpointer``: saves the state of a job so that it is either whole or not there, and resumes.

All ranks save at the same step, and leave at the same step when they are asked to; see
``worker.agreement`` for how they agree. ``save/`` is how a save goes, ``load/`` how a load does,
``format/manifest.py`` what a checkpoint is; the walk from ``step`` to a committed checkpoint is in
docs/architecture.md.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from elastic_runtime.checkpoint.entries import usage_checks
from elastic_runtime.checkpoint.entries.committed_entries import CommittedEntries
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
from elastic_runtime.protocol.messages import EXIT_DRAINED
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.context import WorkerContext, context
from elastic_runtime.worker.fast_exit import exit_fast
from elastic_runtime.worker.peers import GlooGroups, Peers
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, StateVersion

if TYPE_CHECKING:
    import os
    from collections.abc import MutableMapping, Sequence
    from datetime import timedelta

    from elastic_runtime.checkpoint.storage.retention import Retention
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice
    from elastic_runtime.worker.state.training_state import State


@dataclass(frozen=True, slots=True)
class _ConnectedRanks:
    """The ranks, once they are connected."""

    peers: Peers
    agreement: Agreement


class Checkpointer:
    """Saves and restores the entries of a job, in any world to any other.

    Example::

        ckpt = Checkpointer("runs/digits", {"model": model, "optim": optim}, every="30s", keep=3)
        ckpt.resume()
        for batch in loader:
            ...
            ckpt.step()
        ckpt.save()
        ckpt.close()

    A save takes a copy of the state and writes it in the background; at most one is under way.
    Every method is to be called by all ranks at the same point of the program.
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
        """Takes the settings; the directory is first touched by ``resume``, ``step`` or ``save``.

        Args:
            directory: holds all checkpoints of the job; all nodes must see the same one.
            entries: by name: modules, optimizers, generators, anything with ``state_dict`` and
                ``load_state_dict``, and plain values; ``PerRank`` for what each rank has for
                itself. Plain values are read from this mapping at each save, and replaced in it
                by ``resume``.
            every: how often to save: steps (``10``, ``"10 steps"``), a time (``"30s"``), or both
                (``"100 steps, 5m"``, ``(100, "5m")``), whichever comes first. None: only when
                ``save`` is called or the job is asked to leave. The first save of a job that
                did not resume is due soon after its first step.
            keep: how many checkpoints to keep, at least 1; None: all of them.
            keep_every: which others to keep for good: steps, a time, or both.
            sync: no save is done in the background: each one stops training until it is durable,
                and takes no memory.
            snapshot_every: how often to take a snapshot in the memory of the agents, as ``every``.
                It is taken at the next step that all ranks agree on, and left out while a save is
                under way.
            on_save_error: what follows if a state cannot be saved at present. ``"continue"``: an
                event, and the next save is tried sooner; ``"raise"``: an error at a step.
            max_save_age: with ``"continue"``, how long no save may succeed before that is an error
                after all, which has the job restarted: a time or steps, as ``every``. None: ten
                intervals, but at least a minute; an hour after the first failure if ``every`` is
                None.

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
        self._storage = _opened(directory, self._context)
        self._entries = Entries(entries)
        self._committed = CommittedEntries(entries)
        self._context.offer_drain()
        timetable = SaveTimetable.at_start(interval, limit, time.monotonic())
        self._assemble(retention, snapshot_interval, timetable, raises=on_save_error == "raise")
        self._gloo: GlooGroups | None = None
        self._state: State | None = None
        self._is_over = False  # elastic.run is, which it was given
        self._group: _ConnectedRanks | None = None
        self._steps = 0

    def _assemble(
        self, retention: Retention, snapshots: Every, timetable: SaveTimetable, *, raises: bool
    ) -> None:
        """Makes what saves, takes snapshots and loads."""
        storage, entries, here = self._storage, self._entries, self._context
        self._executor = SaveExecutor(storage, self._objects, entries, retention, here)
        self._scheduler = SaveScheduler(self._executor, timetable, sync=self._sync, raises=raises)
        self._snapshots = SnapshotScheduler(storage, self._executor.term, snapshots, here)
        self._loader = LatestStateLoader(storage, self._executor, self._snapshots, entries, here)

    def __repr__(self) -> str:
        """Where it saves what, and the step."""
        names = ", ".join(self._objects)
        return f"{type(self).__name__}({self._storage.where!r}: {names}; step {self._steps})"

    # What users call

    @property
    def steps(self) -> int:
        """How many steps the job has made, over all its restarts."""
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._is_the_scripts("steps was set")
        self.count(value)

    def resume(self, *, strict: bool = True) -> int:
        """Loads the newest whole checkpoint, if there is any: from memory, or from storage.

        One whose files are not what was written is named in an event, and the next older one is
        taken.

        Args:
            strict: whether the checkpoint must have exactly the keys of this program. False: what
                it lacks stays as it is, and what it has too much is left out; an event names both.

        Returns:
            The step that it was saved at, 0 if there is none: a new run begins.

        Raises:
            DamagedCheckpoint: there are checkpoints, but none that is whole.
            CheckpointError: the directory cannot be used, or the checkpoint does not fit.
            UsageError: ``elastic.run`` has been given this checkpointer.
        """
        self._is_the_scripts("resume() was called")
        found = self._load(strict=strict)
        return found.step if found is not None else 0

    def step(self) -> None:
        """Counts a step that is complete, and saves or leaves if that is due.

        Raises:
            SystemExit: the job was asked to leave; the state of this step is saved.
            CheckpointFailed: the job was asked to leave, and the state could not be saved; or no
                save has succeeded for too long; or one has failed, with ``on_save_error="raise"``.
                Older checkpoints are untouched.
            CheckpointUsageError: the state can never be saved.
            UsageError: an entry is committed by another checkpointer as well, or by
                ``elastic.run``, which has been given this one.
        """
        self._is_the_scripts("step() was called")
        group = self._ready()
        self.count(self._steps + 1)
        self._committed.commit()
        self._context.report_step(self.steps)
        agreed = group.agreement.step(Wish.TRAINS | self._wishes(group.peers))
        if Wish.LEAVE in agreed:
            self.save(sync=True)
            self._leave()
        self.act_on(agreed)

    def save(self, *, sync: bool = False) -> None:
        """Saves the state of the present step, if that is not done already.

        It returns once the state is copied; writing the copy goes on in the background. It waits
        for the save before, if that is still under way. Steps are counted by ``step()``, or set
        in ``steps``.

        Args:
            sync: return when the state is durable. That needs no copy.

        Raises:
            CheckpointFailed: with ``sync``, it could not be saved, though that was tried several
                times; otherwise see ``step``. Older checkpoints are untouched.
            CheckpointUsageError: the state can never be saved.
            UsageError: step 0 is to be saved for the second time: nobody counts the steps; or
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

    def wait(self) -> None:
        """Waits until the save in the background, if there is one, is durable.

        If it fails, it is tried again several times: the copy of the state is still there.

        Raises:
            CheckpointFailed: it could not be finished; older checkpoints are untouched.
        """
        self._scheduler.wait()

    def close(self) -> None:
        """Finishes what is under way, for a program that makes no more steps. Saves nothing new.

        Raises:
            CheckpointFailed: the save in the background could not be finished.
        """
        try:
            if self._group is not None:
                self._group.agreement.close()
            self._executor.close()
            self._scheduler.report_end(self.steps)
        finally:
            self._context.withdraw_drain()

    # What ``elastic.run`` calls

    def count(self, steps: int) -> None:
        """Says how many steps the job has made; it may have gone back."""
        if steps < self._steps:
            self._scheduler.go_back()
        self._steps = steps

    def attach(self, state: State, gloo: GlooGroups) -> None:
        """Works for ``elastic.run`` from now on, which counts the steps and says when to save.

        A save that was under way in the world before is given up, and soon done again.

        Args:
            state: what is trained; all of it must be among the entries.
            gloo: to all ranks, until the next call.

        Raises:
            CheckpointUsageError: a part of the state is not saved.
        """
        kept = {id(entry) for entry in self._objects.values()}
        missing = [name for name, part in state.parts.items() if id(part) not in kept]
        if missing:
            raise CheckpointUsageError(
                f"the checkpointer does not save {', '.join(missing)} of the State; add them to "
                "its entries, or a checkpoint would not be the whole state"
            )
        self._entries.add_counters(state.counters_entry())
        self._state = state
        lost = self._executor.enter(gloo)
        self._snapshots.enter()
        self._gloo = gloo
        self._group = None
        self._scheduler.enter(lost=lost)

    def detach(self) -> None:
        """``elastic.run`` is over: the groups are gone, and nothing is saved or loaded any more."""
        if self._state is not None:
            self._scheduler.report_end(self.steps)
            self._is_over = True
            self._executor.enter(None)
            self._snapshots.enter()
            self._gloo = self._group = None

    @property
    def saved_step(self) -> int:
        """The step that is saved for certain, as far as this rank knows.

        0 if it knows of none: there may be a checkpoint of an earlier life.
        """
        return self._executor.saved_step or 0

    @property
    def term(self) -> int:
        """The newest term in which this rank's state was saved, or was about to be; 0: none."""
        return self._executor.term.newest_known

    @property
    def base(self) -> StateVersion:
        """The newest save that this rank's memory is known not to be older than; 0, 0: of none."""
        base = self._executor.term.base
        return StateVersion(base.term, base.step)

    def load(self, over: StateVersion | None, *, strict: bool = True) -> StateVersion | None:
        """Loads the newest state that is saved, and newer than what the ranks hold in memory.

        Args:
            over: what they hold, which is not touched before something newer is known to be
                whole; None: nothing.
            strict: see ``resume``.

        Returns:
            What was loaded, None if there is nothing.

        Raises:
            DamagedCheckpoint: there are checkpoints, but none that is whole, and no memory.
            CheckpointError: the directory cannot be used, or the checkpoint does not fit.
        """
        floor = None if over is None else CheckpointId(*over)
        found = self._load(strict=strict, over=floor)
        return None if found is None else StateVersion(found.term, found.step)

    def newest(self) -> StateVersion | None:
        """The newest checkpoint in storage that claims to be whole; for one rank to ask.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        found = self._loader.stored()
        return StateVersion(found[0].term, found[0].step) if found else None

    def received(self, choice: RecoveryChoice) -> None:
        """This rank has the memory of the sources now; a fault may still come before ``recovered``.

        Args:
            choice: what all ranks go on from.
        """
        self._executor.term.recover_from(CheckpointId(*choice.base), choice.term, anew=True)

    def recovered(self, choice: RecoveryChoice) -> None:
        """All ranks are alike now, and go on from there.

        Args:
            choice: the same on all ranks.
        """
        self.count(choice.step)
        if choice.kind == "saved":
            return  # all of them have loaded it
        received = self._ready().peers.rank not in choice.sources
        base = CheckpointId(*choice.base)
        self._executor.term.recover_from(base, choice.term, anew=choice.asked or received)

    def wishes(self) -> Wish:
        """What this rank asks all ranks to do."""
        return self._wishes(self._ready().peers)

    def act_on(self, agreed: Wish) -> None:
        """Does what follows from a step: hears of a failed save, saves if due, takes a snapshot.

        Args:
            agreed: by all ranks, at this step.

        Raises:
            CheckpointError: see ``step``.
        """
        group = self._ready()
        save, failed = Wish.SAVE in agreed, Wish.FAILED in agreed
        if self._scheduler.act_on(group.peers, self.steps, failed=failed, agreed=save):
            group.agreement.restart_clock()
        self._snapshot(agreed)

    def _snapshot(self, agreed: Wish) -> None:
        """Takes a snapshot, if that is agreed on and no rank has anything else under way."""
        if Wish.SNAPSHOT not in agreed:
            return
        self._snapshots.rest(self.steps)
        # They have asked each other at the step before: what has begun since, all know.
        peers = self._ready().peers
        if Wish.BUSY in agreed or self._executor.began_since(self.steps - 1):
            return
        if not self._scheduler.collect_result(peers, self.steps):
            return
        with suppress(CheckpointFailed):  # it is an event, and costs nothing else
            self._executor.snapshot_in_background(peers, self.steps, self._snapshots)

    # What all ranks do

    def _load(self, *, strict: bool, over: CheckpointId | None = None) -> CheckpointId | None:
        """Loads the newest that is whole; None: there is nothing, and all is as it was."""
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
        """If a peer dies while all load, nobody goes on from tensors that are half overwritten."""
        state = self._state
        if state is not None and state.rank_status().condition is not MemoryCondition.NEW:
            state.give_up(step)

    def _is_the_scripts(self, what: str) -> None:
        """Raises UsageError if ``elastic.run`` does this, as it was given this checkpointer."""
        if self._state is not None:
            usage_checks.refuse_in_place(what, self._storage.where)

    def _ready(self) -> _ConnectedRanks:
        """Connects the ranks at the first use, when the job has certainly been initialized."""
        if self._state is None and self._context.in_place:
            usage_checks.refuse_beside(self._storage.where)
        if self._group is None:
            peers = Peers(self._gloo.group if self._gloo else None)
            if not self._storage.shared and (peers.world > 1 or self._context.has_agent):
                raise CheckpointUsageError(
                    f"{self._storage.where} is in the memory of one process: no other rank sees "
                    "it, and it ends with the process; choose a place that all nodes share"
                )
            self._scheduler.check_place(peers, self.steps)
            if peers.rank > 0:
                self._executor.term.release()
            self._group = _ConnectedRanks(peers, Agreement(peers.group))
        return self._group

    def _wishes(self, peers: Peers) -> Wish:
        rank = peers.rank
        wishes = Wish.LEAVE if self._context.drain.is_set() else Wish.NOTHING
        if self._executor.has_failed:
            wishes |= Wish.FAILED
        if self._snapshots.wanted:
            self._executor.leave_behind()
            wishes |= Wish.BUSY if self._executor.is_busy else Wish.NOTHING
            wishes |= self._snapshots.wish(self.steps) if rank == 0 else Wish.NOTHING
        if rank == 0 and self._scheduler.wishes_save(peers):
            wishes |= Wish.SAVE
        return wishes

    def _leave(self) -> NoReturn:
        self._context.drained(self.steps)
        _end(self._context)


def _opened(directory: str | os.PathLike[str], here: WorkerContext) -> Storage:
    """The storage; the first rank finds out whether it can be used, and the others wait for it."""
    first = of_a_job(here.note, _leave_if_asked) if here.rank == 0 else None
    return open_storage(directory, first)


def _end(here: WorkerContext) -> NoReturn:
    """Ends this process, as it was asked to leave."""
    # Without an agent it was a SIGTERM, and whoever sent it expects the usual exit code.
    code = EXIT_DRAINED if here.has_agent else 128 + signal.SIGTERM
    exit_fast(code)
    raise SystemExit(code)


def _leave_if_asked() -> None:
    """For a wait in which there is nothing to save yet."""
    if (here := context()).drain.is_set():
        _end(here)
