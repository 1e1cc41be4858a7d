"""``Checkpointer``: saves the state of a job so that it is either whole or not there, and resumes.

All ranks save at the same step, and leave at the same step when they are asked to; see
``worker.agreement`` for how they agree. ``saves`` is how a save goes, ``loading`` how a load does,
``manifest`` what a checkpoint is.
"""

from __future__ import annotations

import signal
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from elastic_runtime.checkpoint.loading import Loading
from elastic_runtime.checkpoint.manifest import CheckpointId, newest_first
from elastic_runtime.checkpoint.per_rank import Place
from elastic_runtime.checkpoint.retention import parse_retention
from elastic_runtime.checkpoint.saves import Saves
from elastic_runtime.checkpoint.schedule import Every, Interval, parse_every
from elastic_runtime.checkpoint.snapshots import Snapshots
from elastic_runtime.checkpoint.state import Entries
from elastic_runtime.checkpoint.storages import open_storage
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint, UsageError
from elastic_runtime.protocol.messages import EXIT_DRAINED
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.context import WorkerContext, context
from elastic_runtime.worker.ending import end_quickly
from elastic_runtime.worker.peers import Connection, Peers
from elastic_runtime.worker.standing import Condition

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from datetime import timedelta

    from elastic_runtime.checkpoint.choosing import Way
    from elastic_runtime.checkpoint.storage import Source
    from elastic_runtime.worker.state import State


@runtime_checkable
class Committing(Protocol):
    """An entry that moves on with each step, such as a sampler with its cursor."""

    def commit(self) -> None:
        """Takes note that a step is done."""


# Whose steps each entry was last committed by.
_committers: dict[int, object] = {}


@dataclass(frozen=True, slots=True)
class _Group:
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

    Attributes:
        steps: how many steps the job has made, over all its restarts.
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
                ``save`` is called or the job is asked to leave.
            keep: how many checkpoints to keep, at least 1; None: all of them.
            keep_every: which others to keep for good: steps, a time, or both.
            sync: no save is done in the background: each one stops training until it is durable,
                and takes no memory.
            snapshot_every: how often to take a snapshot in the memory of the agents, as ``every``.
                It is taken at the next step that all ranks agree on, and left out while a save is
                under way.

        Raises:
            CheckpointError: a setting or an entry cannot be used.
        """
        _check_named(entries)
        self._every: Every = parse_every(every)
        rule = parse_retention(keep, keep_every)
        self._objects = entries
        self._storage = open_storage(directory)
        self._entries = Entries(entries)
        self._committing = {k: e for k, e in entries.items() if isinstance(e, Committing)}
        self._commits = False
        self._token = object()
        self._context: WorkerContext = context()
        self._context.offer_drain()
        self._saves = Saves(self._storage, entries, self._entries, rule, self._context)
        self._snapshots = Snapshots(
            self._storage,
            self._saves.tenure,
            parse_every(snapshot_every, "snapshot_every"),
            self._context,
        )
        self._sync = sync
        self._connection: Connection | None = None
        self._state: State | None = None
        self._group: _Group | None = None
        self._begun: int | None = None  # the step of the last save that was not in vain
        self._prepared = False
        self._save_wished = False
        self._save_soon = False  # one was given up
        self._last_save = time.monotonic()
        self.steps = 0

    # What users call

    def resume(self, *, strict: bool = True) -> int:
        """Loads the newest whole checkpoint, if there is any: from memory, or from storage.

        One whose files are not what was written is named in an event, and the next older one is
        taken.

        Args:
            strict: whether the checkpoint must have exactly the keys of this program. False: what
                it lacks stays as it is, and what it has too much is left out; an event names both.

        Returns:
            The step that it was saved at, 0 if there is none.

        Raises:
            DamagedCheckpoint: there are checkpoints, but none that is whole.
            CheckpointError: the directory cannot be used, or the checkpoint does not fit.
        """
        started = time.monotonic()
        group = self._ready()
        self._saves.finish_flight()
        problems: list[str] = []
        stored = newest_first(group.peers.on_first(self._candidates))
        for way in self._snapshots.ways(group.peers, stored):
            try:
                origin = self._follow(way, group.peers, strict)
            except DamagedCheckpoint as error:
                problems.append(str(error))
                if way.places is None:
                    self._saves.damaged.add(way.which)
                where = {} if way.places is None else {"path": "memory"}
                self._note("damaged", problem=str(error), step=way.which.step, **where)
                continue
            if not origin:
                continue
            self._go_on_from(way)
            seconds = time.monotonic() - started
            self._note("resumed", step=way.which.step, seconds=seconds, source=origin)
            break
        else:
            if problems:
                raise DamagedCheckpoint(
                    f"no checkpoint in {self._storage.where} is whole ({'; '.join(problems)}); "
                    "repair or remove them to start anew"
                )
        self._rest()
        self._snapshots.rest(self.steps)
        return self.steps

    def step(self) -> None:
        """Counts a step that is complete, and saves or leaves if that is due.

        Raises:
            SystemExit: the job was asked to leave; the state of this step is saved.
            CheckpointError: a state could not be saved, this one or the one that was being saved
                in the background; older checkpoints are untouched.
            UsageError: an entry is committed by another checkpointer as well.
        """
        group = self._ready()
        self.steps += 1
        self._commit()
        self._context.report_step(self.steps)
        agreed = group.agreement.step(Wish.TRAINS | self._wishes(group.peers.rank))
        if Wish.LEAVE in agreed:
            self.save(sync=True)
            self._leave()
        if Wish.FAILED in agreed:
            self.wait()
        if Wish.SAVE in agreed or self._every.due_at(self.steps):
            self.save()
        else:
            self.prepare()
        self.snapshot(agreed)

    def save(self, *, sync: bool = False) -> None:
        """Saves the state of the present step, if that is not done already.

        It returns once the state is copied; writing the copy goes on in the background. It waits
        for the save before, if that is still under way. Steps are counted by ``step()``, or set
        in ``steps``.

        Args:
            sync: return when the state is durable. That needs no copy.

        Raises:
            CheckpointError: it could not be saved, or the save before could not be finished; older
                checkpoints are untouched.
            UsageError: step 0 is to be saved for the second time: nobody counts the steps.
        """
        peers = self._ready().peers
        at_once = sync or self._sync
        if self._begun == self.steps:
            if not at_once and not self.steps and self._state is None:
                raise UsageError(
                    "save() was called again at step 0: call step() after each step, or set steps; "
                    "a checkpoint is of a step, and each step is saved once"
                )
            if not at_once:
                return
            self._saves.finish_flight()
            if self._saves.held == self.steps:
                return
        self._begun = None
        if at_once:
            self._saves.save_now(peers, self.steps)
        else:
            self._saves.save_beside(peers, self.steps)
            self._prepared = True
        self._begun = self.steps
        self._rest()

    def wait(self) -> None:
        """Waits until the save in the background, if there is one, is durable.

        Raises:
            CheckpointError: it could not be finished; older checkpoints are untouched.
        """
        try:
            self._saves.wait()
        except Exception:
            self._begun = None
            raise

    def close(self) -> None:
        """Finishes what is under way, for a program that makes no more steps. Saves nothing new.

        Raises:
            CheckpointError: the save in the background could not be finished.
        """
        try:
            if self._group is not None:
                self._group.agreement.close()
            self._saves.close()
        finally:
            self._context.withdraw_drain()

    # What ``elastic.run`` calls

    def attach(self, state: State, connection: Connection) -> None:
        """Works for ``elastic.run`` from now on, which counts the steps and says when to save.

        A save that was under way in the world before is given up, and soon done again.

        Args:
            state: what is trained; all of it must be among the entries.
            connection: to all ranks, until the next call.

        Raises:
            CheckpointError: a part of the state is not saved.
        """
        kept = {id(entry) for entry in self._objects.values()}
        missing = [name for name, part in state.parts.items() if id(part) not in kept]
        if missing:
            raise CheckpointError(
                f"the checkpointer does not save {', '.join(missing)} of the State; add them to "
                "its entries, or a checkpoint would not be the whole state"
            )
        self._entries.add_counters(state.counters_entry())
        self._state = state
        lost = self._saves.enter(connection)
        self._snapshots.enter()
        self._connection = connection
        self._group = None
        self._begun = self._saves.held
        self._save_wished = False
        self._save_soon = lost
        self._prepared = False

    @property
    def held(self) -> int:
        """The step that is saved for certain, as far as this rank knows.

        0 if it knows of none: there may be a checkpoint of an earlier life.
        """
        return self._saves.held or 0

    def wishes(self) -> Wish:
        """What this rank asks all ranks to do."""
        return self._wishes(self._ready().peers.rank)

    def prepare(self) -> None:
        """Takes the memory that a save will need, beside training, after the first step."""
        # An optimizer has no state before.
        if not self._prepared and self._every != Every() and not self._sync:
            self._saves.warm_up(self._ready().peers)
        self._prepared = True

    def due_at(self, step: int) -> bool:
        """Whether all ranks are to save at this step, which needs no agreement."""
        return self._every.due_at(step)

    def snapshot(self, agreed: Wish) -> None:
        """Takes a snapshot, if that is agreed on and no rank has anything else under way.

        Args:
            agreed: by all ranks, at this step.
        """
        if Wish.SNAPSHOT not in agreed:
            return
        self._snapshots.rest(self.steps)
        # They have asked each other at the step before: what has begun since, all know.
        if Wish.BUSY not in agreed and not self._saves.began_since(self.steps - 1):
            self._saves.snapshot_beside(self._ready().peers, self.steps, self._snapshots)

    def _commit(self) -> None:
        """Has each entry that moves on with the steps take note of one.

        Raises:
            UsageError: another checkpointer does so as well, in turn with this one.
        """
        for name, entry in self._committing.items():
            if self._commits and _committers[id(entry)] is not self._token:
                raise UsageError(
                    f"the entry {name!r} is one of two checkpointers, and each step of either "
                    "moves it on, so that half of the data would be left out; give it to one only"
                )
            _committers[id(entry)] = self._token
            entry.commit()
        self._commits = True

    # What all ranks do

    def _ready(self) -> _Group:
        """Connects the ranks at the first use, when the job has certainly been initialized."""
        if self._group is None:
            peers = Peers(self._connection.group if self._connection else None)
            if not self._storage.shared and (peers.world > 1 or self._context.has_agent):
                raise CheckpointError(
                    f"{self._storage.where} is in the memory of one process: no other rank sees "
                    "it, and it ends with the process; choose a place that all nodes share"
                )
            if self._every != Every():
                peers.on_first(self._storage.prepare)
            if peers.rank > 0:
                self._saves.tenure.let_go()
            self._group = _Group(peers, Agreement(peers.group))
        return self._group

    def _wishes(self, rank: int) -> Wish:
        wishes = Wish.LEAVE if self._context.drain.is_set() else Wish.NOTHING
        if self._saves.has_failed:
            wishes |= Wish.FAILED
        if self._snapshots.wanted:
            wishes |= Wish.BUSY if self._saves.is_busy else Wish.NOTHING
            wishes |= self._snapshots.wish(self.steps) if rank == 0 else Wish.NOTHING
        waited = time.monotonic() - self._last_save
        again = self._save_soon and not self._saves.is_clearing
        due = again or self._every.due_after(waited)
        if rank == 0 and due and not self._save_wished:
            self._save_wished = True
            wishes |= Wish.SAVE
        return wishes

    def _rest(self) -> None:
        """Starts the clocks anew after a save or a load."""
        self._save_wished = self._save_soon = False
        self._last_save = time.monotonic()
        self._ready().agreement.restart_clock()

    def _follow(self, way: Way, peers: Peers, strict: bool) -> str:
        """Loads one state, and says where from; "" if it cannot be reached.

        Raises:
            DamagedCheckpoint: it is not what was written. The entries may have any content now.
        """
        if way.places is None:
            self._load(self._storage, way.which, peers, strict)
            return "storage"
        snapshot = self._snapshots.open(peers, way)
        if snapshot is None:
            return ""
        try:
            self._load(snapshot, way.which, peers, strict)
            return "peer" if any(peers.gather(snapshot.fetched)) else "memory"
        finally:
            snapshot.close()

    def _go_on_from(self, way: Way) -> None:
        self.steps = way.which.step
        self._begun = None
        if way.places is None:
            self._begun = self._saves.held = self.steps
        self._saves.tenure.inherit(way.which.term)
        self._snapshots.keep_only(way.which if way.places is not None else None)

    def _load(self, source: Source, which: CheckpointId, peers: Peers, strict: bool) -> None:
        note = self._context.note if peers.rank == 0 else None
        place = Place(peers.rank, peers.world)
        loading = Loading(source, which, self._entries, place, strict=strict, note=note)
        loaded = loading.run(peers, lambda: self._give_up_memory(which.step))
        if loaded.missing or loaded.surplus:
            self._note("partly", missing=list(loaded.missing), surplus=list(loaded.surplus))
        if loaded.anew:
            self._note("anew", entries=list(loaded.anew))

    def _give_up_memory(self, step: int) -> None:
        """If a peer dies while all load, nobody goes on from tensors that are half overwritten."""
        state = self._state
        if state is not None and state.standing().condition is not Condition.NEW:
            state.give_up(step)

    def _leave(self) -> NoReturn:
        self._context.drained(self.steps)
        # Without an agent it was a SIGTERM, and whoever sent it expects the usual exit code.
        code = EXIT_DRAINED if self._context.has_agent else 128 + signal.SIGTERM
        end_quickly(code)
        raise SystemExit(code)

    # What rank 0 does for all

    def _candidates(self) -> list[str]:
        """The names of all checkpoints that claim to be whole."""
        storage = self._storage
        return [one.name for one in newest_first(storage.names()) if storage.has_manifest(one)]

    def _note(self, what: str, **fields: Any) -> None:
        if self._ready().peers.rank == 0:
            self._context.note(f"checkpoint.{what}", **{"path": self._storage.where, **fields})


def _check_named(entries: object) -> None:
    if not isinstance(entries, MutableMapping):
        raise CheckpointError(
            f"the entries of a Checkpointer go by name, and this is a {type(entries).__name__}; "
            'give a dict such as {"model": model, "optim": optim}'
        )
