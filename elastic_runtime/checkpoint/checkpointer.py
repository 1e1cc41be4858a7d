"""``Checkpointer``: saves the state of a job so that it is either whole or not there, and resumes.

All ranks save at the same step, and leave at the same step when they are asked to; see
``worker.agreement`` for how they agree. ``storage`` says what makes a save durable, ``manifest``
what a checkpoint is, ``dcp`` how shards are written and read.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from elastic_runtime.checkpoint import dcp
from elastic_runtime.checkpoint.loading import Loading
from elastic_runtime.checkpoint.manifest import CheckpointId, newest_first
from elastic_runtime.checkpoint.saving import Saving, Tenure
from elastic_runtime.checkpoint.schedule import Every, parse_every
from elastic_runtime.checkpoint.state import Entries
from elastic_runtime.checkpoint.storage import CheckpointDirectory
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint
from elastic_runtime.protocol.messages import EXIT_DRAINED
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.context import WorkerContext, context
from elastic_runtime.worker.ending import end_quickly
from elastic_runtime.worker.peers import Peers

if TYPE_CHECKING:
    import os
    from collections.abc import MutableMapping
    from datetime import timedelta

    import torch.distributed as dist

    from elastic_runtime.worker.state import State


@runtime_checkable
class Committing(Protocol):
    """An entry that moves on with each step, such as a sampler with its cursor."""

    def commit(self) -> None:
        """Takes note that a step is done."""


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

    Every method is to be called by all ranks at the same point of the program.

    Attributes:
        steps: how many steps the job has made, over all its restarts.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        entries: MutableMapping[str, Any],
        *,
        every: int | str | timedelta | None = None,
        keep: int | None = None,
    ) -> None:
        """Takes the settings; the directory is first touched by ``resume``, ``step`` or ``save``.

        Args:
            directory: holds all checkpoints of the job; all nodes must see the same one.
            entries: by name: modules, optimizers, anything with ``state_dict`` and
                ``load_state_dict``, and plain values. Plain values are read from this mapping at
                each save, and replaced in it by ``resume``.
            every: how often to save: steps (``10``, ``"10 steps"``) or a time (``"30s"``). None:
                only when ``save`` is called or the job is asked to leave.
            keep: how many checkpoints to keep, at least 1; None: all of them.

        Raises:
            CheckpointError: a setting or an entry cannot be used.
        """
        if keep is not None and (isinstance(keep, bool) or keep < 1):
            raise CheckpointError(f"keep={keep!r} would keep nothing; give at least 1, or None")
        self._every: Every = parse_every(every)
        self._objects = entries
        self._keep = keep
        self._directory = CheckpointDirectory(Path(directory))
        self._entries = Entries(entries)
        self._committing = [e for e in entries.values() if isinstance(e, Committing)]
        self._context: WorkerContext = context()
        self._context.offer_drain()
        self._ranks: dist.ProcessGroup | None = None
        self._group: _Group | None = None
        self._tenure = Tenure(self._directory, self._context)
        self._held: int | None = None  # the step whose state is on disk for certain
        self._save_wished = False
        self._last_save = time.monotonic()
        self.steps = 0

    # What users call

    def resume(self) -> int:
        """Loads the newest whole checkpoint, if there is any.

        One whose files are not what was written is named in an event, and the next older one is
        taken.

        Returns:
            The step that it was saved at, 0 if there is none.

        Raises:
            DamagedCheckpoint: there are checkpoints, but none that is whole.
            CheckpointError: the directory cannot be used, or the checkpoint does not fit.
        """
        started = time.monotonic()
        group = self._ready()
        problems: list[str] = []
        for which in newest_first(group.peers.on_first(self._candidates)):
            try:
                self._load(which, group.peers)
            except DamagedCheckpoint as error:
                problems.append(str(error))
                self._note("damaged", problem=str(error), step=which.step)
                continue
            self.steps = self._held = which.step
            self._note("resumed", step=which.step, seconds=time.monotonic() - started)
            break
        else:
            if problems:
                raise DamagedCheckpoint(
                    f"no checkpoint in {self._directory.path} is whole ({'; '.join(problems)}); "
                    "repair or remove them to start anew"
                )
        self._rest()
        return self.steps

    def step(self) -> None:
        """Counts a step that is complete, and saves or leaves if that is due.

        Raises:
            SystemExit: the job was asked to leave; the state of this step is saved.
            CheckpointError: the state could not be saved; older checkpoints are untouched.
        """
        group = self._ready()
        self.steps += 1
        for entry in self._committing:
            entry.commit()
        self._context.report_step(self.steps)
        agreed = group.agreement.step(self._wishes(group.peers.rank))
        if agreed or self._every.due_at(self.steps):
            self.save()
        if Wish.LEAVE in agreed:
            self._leave()

    def save(self) -> None:
        """Saves the state of the present step now, if that is not done already.

        Raises:
            CheckpointError: it could not be saved; older checkpoints are untouched.
        """
        peers = self._ready().peers
        if self._held == self.steps:
            return
        started = time.monotonic()
        saving = Saving(
            self._directory,
            self._tenure,
            self.steps,
            world=peers.world,
            round=self._context.round,
            entries=self._entries.names,
        )
        writer = dcp.ShardWriter(saving.begin, saving.commit)
        try:
            dcp.save(lambda: self._entries.state(first=peers.rank == 0), writer, peers.group)
        except CheckpointError:
            saving.discard()
            raise
        self._held = self.steps
        self._note("saved", step=self.steps, seconds=time.monotonic() - started)
        if peers.rank == 0 and self._keep is not None:
            self._prune(self._keep)
        self._rest()

    def close(self) -> None:
        """Ends what is under way, for a program that makes no more steps. Nothing is saved."""
        if self._group is not None:
            self._group.agreement.close()
        self._context.withdraw_drain()

    # What ``elastic.run`` calls

    def attach(self, state: State, group: dist.ProcessGroup) -> None:
        """Works for ``elastic.run`` from now on, which counts the steps and says when to save.

        Args:
            state: what is trained; all of it must be among the entries.
            group: all ranks, over gloo, until the next call.

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
        self._ranks = group
        self._group = None
        self._save_wished = False

    @property
    def held(self) -> int:
        """The step that is saved for certain, as far as this rank knows.

        0 if it knows of none: there may be a checkpoint of an earlier life.
        """
        return self._held or 0

    def wishes_save(self) -> bool:
        """Whether this rank finds that it is time for a save."""
        return Wish.SAVE in self._wishes(self._ready().peers.rank)

    def due_at(self, step: int) -> bool:
        """Whether all ranks are to save at this step, which needs no agreement."""
        return self._every.due_at(step)

    # What all ranks do

    def _ready(self) -> _Group:
        """Connects the ranks at the first use, when the job has certainly been initialized."""
        if self._group is None:
            peers = Peers(self._ranks)
            if self._every != Every():
                peers.on_first(self._directory.prepare)
            self._group = _Group(peers, Agreement(peers.group))
        return self._group

    def _wishes(self, rank: int) -> Wish:
        wishes = Wish.LEAVE if self._context.drain.is_set() else Wish.NOTHING
        waited = time.monotonic() - self._last_save
        if rank == 0 and not self._save_wished and self._every.due_after(waited):
            self._save_wished = True
            wishes |= Wish.SAVE
        return wishes

    def _rest(self) -> None:
        """Starts the clocks anew after a save or a load."""
        self._save_wished = False
        self._last_save = time.monotonic()
        self._ready().agreement.restart_clock()

    def _load(self, which: CheckpointId, peers: Peers) -> None:
        loading = Loading(self._directory, which, self._entries)
        peers.on_each(lambda: loading.verify(peers.rank, peers.world))
        peers.on_each(loading.read)

    def _leave(self) -> NoReturn:
        self._context.drained(self.steps)
        # Without an agent it was a SIGTERM, and whoever sent it expects the usual exit code.
        code = EXIT_DRAINED if self._context.has_agent else 128 + signal.SIGTERM
        end_quickly(code)
        raise SystemExit(code)

    # What rank 0 does for all

    def _candidates(self) -> list[str]:
        """The names of all checkpoints that claim to be whole."""
        directory = self._directory
        return [one.name for one in newest_first(directory.names()) if directory.has_manifest(one)]

    def _prune(self, keep: int) -> None:
        try:
            self._directory.prune(keep)
        except (OSError, CheckpointError) as error:
            # The save has succeeded; what could not be deleted is tried again after the next one.
            self._note("prune_failed", problem=str(error))

    def _note(self, what: str, **fields: Any) -> None:
        if self._ready().peers.rank == 0:
            self._context.note(f"checkpoint.{what}", path=str(self._directory.path), **fields)
