"""The saves of one process, one after the other: at once, or in the background.

At most one is under way. Beside training it runs on a group of its own, from an image of the state
in memory that the next one uses again; what it has come to is heard by ``wait``.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import Manifest
from elastic_runtime.checkpoint.progress_display import Progress
from elastic_runtime.checkpoint.save.background_thread import Abandoned, Line, Task
from elastic_runtime.checkpoint.save.save_run import Collected, Collector, Saving, Tenure
from elastic_runtime.checkpoint.save.staging import (
    Copies,
    Image,
    PlainCopies,
    copies_for,
    local,
    size_of,
)
from elastic_runtime.checkpoint.storage.catalog import clear_rests, prune
from elastic_runtime.errors import CheckpointError, CheckpointFailed
from elastic_runtime.events.checkpoint_events import (
    CheckpointCommitted,
    CheckpointPruneFailed,
    CheckpointSaved,
    CheckpointSaveDiscarded,
    CheckpointSaveFailed,
    CheckpointSaveLate,
)
from elastic_runtime.worker.peers import Connection, Peers
from elastic_runtime.worker.recovery.process_groups import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.utils.hooks import RemovableHandle

    from elastic_runtime.checkpoint.entries.flat_state import Entries
    from elastic_runtime.checkpoint.format.manifest import CheckpointId
    from elastic_runtime.checkpoint.format.rank_outline import Item
    from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import Snapshots
    from elastic_runtime.checkpoint.storage.retention import Retention
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.worker.context import WorkerContext

# Seconds between the tries of a save that nobody can do without: the last one of a program, or
# one that it waits for. All of them together are well below the grace of one that leaves.
_PAUSES = (0.5, 1.0, 2.0, 4.0)
# Seconds that a save which was given up may take to end before the next one goes on without it, and
# how many may be left behind so: each keeps an image of the state.
_STUCK = 10.0
_MOST_LEFT = 2
# What a rank that waits for a storage is busy with, for people.
_BUSY = "a save"
# Seconds from one word about a save that does not end to the next.
_AGAIN = 60.0


@dataclass(frozen=True, slots=True)
class _Flight:
    """A save in the background, or a snapshot; when it began, by the monotonic clock."""

    step: int
    began: float
    task: Task
    work: Callable[[Task], None]
    durable: bool


def _new_line() -> Line:
    return Line("elastic-save")


class Saves:
    """Saves the entries of a job, one save at a time.

    Attributes:
        tenure: the term that this process holds.
        last_whole: when the last save succeeded, by the monotonic clock, and of which step.
    """

    def __init__(
        self,
        storage: Storage,
        objects: Mapping[str, Any],
        entries: Entries,
        rule: Retention,
        context: WorkerContext,
        copies: Callable[[Sequence[torch.Tensor]], Copies] = copies_for,
    ) -> None:
        """Takes what is to be saved where; nothing is touched yet.

        Args:
            storage: where to.
            objects: the entries as the user gave them.
            entries: the same.
            rule: which checkpoints are kept.
            context: hears of events.
            copies: how tensors come into the image.
        """
        self.tenure = Tenure(storage, context)
        self._cleared = 0  # the term in which the rests of older ones were removed
        self.last_whole: tuple[float, int] | None = None
        self.damaged: set[CheckpointId] = set()  # found so while loading: not to be counted on
        self._storage = storage
        self._objects = objects
        self._names = entries.names
        self._collector = Collector(entries)
        self._description = Description()
        self._rule = rule
        self._context = context
        self._make_copies = copies
        self._line = _new_line()
        self._connection: Connection | None = None
        self._beside: Peers | None = None
        self._image: Image | None = None
        self._image_of: Sequence[Item] = ()
        self._warming: Task | None = None
        self._flight: _Flight | None = None
        self._abandoned: _Flight | None = None
        self._abandoned_at = 0.0
        self._left: list[Task] = []
        self._told_late = -_AGAIN
        self._hook: RemovableHandle | None = None
        self._held: int | None = None

    # The world

    def enter(self, connection: Connection | None) -> bool:
        """The ranks are others from now on.

        Args:
            connection: to them; None: by torch's default group.

        Returns:
            Whether a save was under way, which is not finished now.
        """
        self._note_held()
        flight = self._flight
        lost = flight is not None and flight.durable and flight.step != self._held
        if self._flight is not None:
            self._flight.task.abandon()
            self._abandoned, self._flight = self._flight, None
            self._abandoned_at = time.monotonic()
        self._fence()
        self._collector.forget()
        self._connection, self._beside = connection, None
        return lost

    @property
    def held(self) -> int | None:
        """The step whose state is stored for certain, as far as this rank knows."""
        self._note_held()
        return self._held

    @held.setter
    def held(self, step: int | None) -> None:
        self._held = step

    def _note_held(self) -> None:
        flight = self._flight
        if flight is None or not flight.durable:
            return
        if flight.task.has_ended and flight.task.error is None:
            self._held = flight.step

    # Saving

    def warm_up(self, peers: Peers, step: int) -> None:
        """Plans, and takes the memory that saves in the background will need.

        Raises:
            CheckpointError: the state cannot be saved; the same on every rank.
        """
        self._fit(self._collect(peers, step))

    def save_now(self, peers: Peers, step: int) -> None:
        """Saves, and returns when all of it is durable.

        Raises:
            CheckpointError: it could not be saved; the same on every rank.
        """
        self.finish_flight()
        if self.is_clearing:
            self._disown()
        began = time.monotonic()
        collected = self._collect(peers, step)
        saving = self._saving(collected, peers, step)
        with self._context.busy(_BUSY):
            self._run(saving, peers, collected, None, began, None)
        self._held = step

    def save_beside(self, peers: Peers, step: int) -> None:
        """Copies the state, and saves the copy in the background.

        Raises:
            CheckpointError: the state cannot be saved, or the save before could not be finished.
        """
        self.wait()
        began = time.monotonic()
        self._clear()
        collected = self._collect(peers, step)
        saving = self._saving(collected, peers, step)

        def work(beside: Peers, rest: Collected, image: Image, task: Task, blocked: float) -> None:
            self._run(saving, beside, rest, image, began, task, blocked=blocked)

        self._launch(peers, step, collected, began, work, durable=True)

    def snapshot_beside(self, peers: Peers, step: int, snapshots: Snapshots) -> None:
        """Copies the state, and has the copy made a snapshot in the background, if there is room.

        Raises:
            CheckpointError: the state cannot be saved, or the save before could not be finished.
        """
        self.wait()
        began = time.monotonic()
        self._clear()
        collected = self._collector.collect(peers)
        size = sum(map(size_of, collected.items))
        if snapshots.refuses(peers, size, has_image=self._image is not None):
            return
        draft = self._draft(peers, step)

        def work(beside: Peers, rest: Collected, image: Image, task: Task, blocked: float) -> None:
            def advance(count: int) -> None:
                task.check()

            content = rest.content(image)
            snapshots.take(beside, draft, rest.plan, content, advance, blocked=blocked)

        self._launch(peers, step, collected, began, work, durable=False)

    def _launch(
        self,
        peers: Peers,
        step: int,
        collected: Collected,
        began: float,
        work: Callable[[Peers, Collected, Image, Task, float], None],
        *,
        durable: bool,
    ) -> None:
        """Copies the state, and does something with the copy in the background."""
        image = self._fit(collected)
        if self._beside is None:
            self._beside = self._make_peers(peers)
        beside = self._beside
        self._await(self._warming)
        self._warming = None
        image.stage(collected.tensors, self._late(image))
        blocked = time.monotonic() - began
        # The tensors themselves are not looked at any more: their memory may be given away.
        rest = Collected(collected.plan, collected.items, (), collected.values)

        def go(task: Task) -> None:
            work(beside, rest, image, task, blocked)

        self._told_late = -_AGAIN
        self._flight = _Flight(step, began, Task(self._line, go), go, durable)

    def _collect(self, peers: Peers, step: int) -> Collected:
        try:
            return self._collector.collect(peers)
        except CheckpointFailed as error:
            self.tell_failure(peers, step, error)
            raise

    def tell_failure(self, peers: Peers, step: int, error: CheckpointError) -> None:
        """An event: the state of a step could not be saved."""
        self._note(peers, CheckpointSaveFailed(self._storage.where, step, str(error)))

    def _draft(self, peers: Peers, step: int) -> Manifest:
        return Manifest(step, 0, world=peers.world, round=self._context.round, entries=self._names)

    def _saving(self, collected: Collected, peers: Peers, step: int) -> Saving:
        draft = self._draft(peers, step)
        tenure, describe = self.tenure, self._description
        return Saving(self._storage, tenure, draft, collected.plan, describe, tenure.life)

    def _run(
        self,
        saving: Saving,
        peers: Peers,
        collected: Collected,
        image: Image | None,
        began: float,
        task: Task | None,
        blocked: float | None = None,
    ) -> None:
        """One save, in whichever thread, and the events of it."""
        step, content = saving.draft.step, collected.content(image)
        note = self._context.note if peers.rank == 0 and task is None else None
        with Progress(f"saving step {step}", content.size, note) as progress:

            def advance(count: int) -> None:
                progress.advance(count)
                if task is not None:
                    task.check()

            try:
                saved = saving.run(peers, content, alone=task is None, advance=advance)
            except CheckpointError as error:
                self.tell_failure(peers, step, error)
                raise
            except Exception as error:
                why = "the world has changed" if isinstance(error, Abandoned) else str(error)
                reason = why.strip().split("\n")[0]
                self._note(peers, CheckpointSaveDiscarded(self._storage.where, step, reason))
                raise
        seconds = time.monotonic() - began
        self.last_whole = time.monotonic(), step
        if not saved.before:
            where = self._storage.where
            self._note(peers, CheckpointSaved(where, step, saved.bytes, seconds, blocked))
        if peers.rank != 0 and self._context.has_agent:
            self._context.note(CheckpointCommitted(step))
        if peers.rank == 0:
            self._prune(peers, saved.which.term)

    def _prune(self, peers: Peers, term: int) -> None:
        try:
            if self._rule.last is not None:
                self.tenure.leave_behind()  # what a writer that was left behind has finished since
                prune(self._storage, self._rule, term, self.damaged)
            if self._cleared < term:
                if gone := clear_rests(self._storage, term):
                    self.tenure.tell_removed(gone)
                self._cleared = term
        except (OSError, CheckpointError) as error:
            # The save has succeeded; what could not be deleted is tried again after the next one.
            self._note(peers, CheckpointPruneFailed(self._storage.where, str(error)))

    def _note(self, peers: Peers, event: NotedEvent) -> None:
        if peers.rank == 0:
            self._context.note(event)

    # What is under way

    @property
    def has_failed(self) -> bool:
        """Whether the save in the background has ended without success."""
        return self._flight is not None and self._flight.task.has_failed

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return self.is_clearing or not (self._flight is None or self._flight.task.has_ended)

    def began_since(self, step: int) -> bool:
        """Whether a save has begun at this step or later."""
        return self._flight is not None and self._flight.step >= step

    @property
    def is_clearing(self) -> bool:
        """Whether a save that was given up still holds the memory that the next one needs."""
        return self._abandoned is not None and not self._abandoned.task.has_ended

    @property
    def under_way(self) -> tuple[float, int] | None:
        """What must end before the next save can begin: its age in seconds, and its step."""
        for one in (self._abandoned, self._flight):
            if one is not None and not one.task.has_ended:
                return time.monotonic() - one.began, one.step
        return None

    def _clear(self) -> None:
        """Waits for the memory of a save that was given up, or takes some more."""
        if self._abandoned is not None:
            self._await(self._abandoned.task, self._abandoned_at + _STUCK)
            self.leave_behind()
        if self._abandoned is not None:
            self._await(self._abandoned.task)
        self._abandoned = None

    def leave_behind(self) -> None:
        """Goes on without a save that was given up and does not end.

        gloo may lose the end of a peer, and then holds the thread until the group's time-out. The
        next save gets another term, so that none of the two disturbs the other, and memory of its
        own.
        """
        one = self._abandoned
        if one is None or one.task.has_ended or time.monotonic() < self._abandoned_at + _STUCK:
            return
        self._left = [task for task in self._left if not task.has_ended]
        if len(self._left) < _MOST_LEFT:
            self._disown()
            self._left.append(one.task)
            self._abandoned = self._warming = self._image = None
            self._line = _new_line()

    def _disown(self) -> None:
        """A save that was given up may still be at work, with names and descriptions of its own."""
        self.tenure.disown()
        self._description = Description()

    def under_way_after(self, seconds: float) -> tuple[float, int] | None:
        """Waits for what is under way, but not for long.

        Args:
            seconds: at most.

        Returns:
            See ``under_way``.
        """
        until = time.monotonic() + seconds
        for one in (self._abandoned, self._flight):
            if one is not None:
                self._await(one.task, until)
        return self.under_way

    def tell_late(self, peers: Peers, age: float, step: int) -> None:
        """An event, once a minute: a step is still being saved while the next save is due.

        Args:
            peers: all ranks.
            age: seconds since that save began.
            step: the one that is being saved.
        """
        now = time.monotonic()
        if now >= self._told_late + _AGAIN:
            self._told_late = now
            problem = f"step {step} is still being saved; what is due since then waits for it"
            self._note(peers, CheckpointSaveLate(self._storage.where, step, age, problem))

    def wait(self) -> None:
        """Waits for the save in the background, if there is one.

        Raises:
            CheckpointError: it could not be finished; the same on every rank.
            RuntimeError: a peer is gone.
        """
        flight = self._flight
        if flight is None:
            return
        self._await(flight.task)
        self._note_held()
        self._flight = None
        if flight.task.error is not None:
            raise flight.task.error

    def finish(self) -> None:
        """Waits for the save in the background, and tries again if it fails: its copy is there.

        Raises:
            CheckpointError: it could not be finished; the same on every rank.
        """
        flight = self._flight

        def again() -> None:
            if self._flight is None and flight is not None:
                task = Task(self._line, flight.work)
                self._flight = replace(flight, task=task)
            self.wait()

        if flight is not None and flight.durable:
            self.persist(again)
        else:
            self.wait()

    def persist(self, save: Callable[[], None]) -> None:
        """Does something that must not fail, several times if it does.

        Args:
            save: on all ranks, where it fails alike.

        Raises:
            CheckpointError: what it has raised at last.
        """
        for pause in _PAUSES:
            try:
                return save()
            except CheckpointFailed:
                end = time.monotonic() + pause
                while (left := end - time.monotonic()) > 0:
                    self._give_up()
                    time.sleep(min(left, 0.05))  # nothing tells that a storage is well again
        try:
            return save()
        except CheckpointFailed as error:
            tried = f"{error} (it was tried {len(_PAUSES) + 1} times)"
            raise CheckpointFailed(tried) from error

    def finish_flight(self) -> None:
        """Waits for the save in the background; that it has failed is of no interest any more."""
        with suppress(CheckpointError):
            self.wait()

    def close(self) -> None:
        """Waits for the save in the background, and lets go of all memory.

        Raises:
            CheckpointError: it could not be finished; the same on every rank.
        """
        try:
            self.finish()
        finally:
            if self._hook is not None:
                self._hook.remove()
            self._hook = self._image = None

    def _await(self, task: Task | None, until: float = inf) -> None:
        if task is not None and not task.has_ended:
            with self._context.busy(_BUSY):  # a slow storage is no hang
                task.wait(self._give_up, until - time.monotonic())

    def _give_up(self) -> None:
        if self._connection is not None and self._connection.interrupted():
            raise Interrupted

    # The image

    def _make_peers(self, peers: Peers) -> Peers:
        if peers.group is None:
            return peers
        if self._connection is not None:
            return Peers(self._connection.another())
        return Peers(dist.new_group(backend="gloo"))

    def _fit(self, collected: Collected) -> Image:
        """The image for this plan: the last one, or a new one whose memory is being warmed."""
        if self._image is not None and tuple(self._image_of) == tuple(collected.items):
            return self._image
        self._image = None
        image = Image(collected.items, self._make_copies(collected.tensors))
        self._image, self._image_of = image, collected.items
        # In the same thread as all else: the last image is in use no more when this begins.
        self._warming = Task(self._line, lambda task: image.warm(), wanted=False)
        if self._hook is None and not isinstance(image.copies, PlainCopies):
            self._hook = register_optimizer_step_pre_hook(lambda *_: self._fence())
        return image

    def _fence(self) -> None:
        if self._image is not None:
            self._image.copies.fence()

    def _late(self, image: Image) -> Callable[[torch.Tensor], bool]:
        """Which tensors only an optimizer changes."""
        if isinstance(image.copies, PlainCopies):
            return lambda tensor: False
        found: set[int] = set()
        for entry in self._objects.values():
            if isinstance(entry, torch.optim.Optimizer):
                owned = [p for group in entry.param_groups for p in group["params"]]
                owned += [v for p in owned for v in entry.state.get(p, {}).values()]
                found |= {local(o).data_ptr() for o in owned if isinstance(o, torch.Tensor)}
        return lambda tensor: tensor.data_ptr() in found
