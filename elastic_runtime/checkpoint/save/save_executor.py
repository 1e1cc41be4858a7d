"""Runs the saves of one process, one after the other: at once, or in a thread in the background.

At most one is under way. In the background it runs in a thread, on a process group of its own, from
a copy of the state in memory that the next one uses again; how it ended is heard by ``wait``.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import Manifest
from elastic_runtime.checkpoint.save.background_thread import BackgroundThread, Task
from elastic_runtime.checkpoint.save.rank_share import RankShare, ShareCollector
from elastic_runtime.checkpoint.save.save_run import SaveRun, SaveTarget
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.save.staging import Image, ImageMemory, size_of
from elastic_runtime.errors import CheckpointError, CheckpointFailed
from elastic_runtime.events.checkpoint_events import CheckpointSaveLate
from elastic_runtime.limits import (
    ABANDONED_SAVE_TIMEOUT,
    LAST_SAVE_RETRY_PAUSES,
    MAX_ABANDONED_SAVES,
    SLOW_SAVE_REPORT_INTERVAL,
)
from elastic_runtime.worker.groups.round_ranks import Interrupted
from elastic_runtime.worker.peers import GlooGroups, Peers

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
    from elastic_runtime.checkpoint.storage.retention import Retention
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.parts.saved_parts import SavedParts
    from elastic_runtime.worker.context import WorkerContext

# What a rank that waits for a storage is busy with, for people.
_BUSY = "a save"


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A save in the background, or a snapshot; when it began, by the monotonic clock."""

    step: int
    began: float
    task: Task
    work: Callable[[Task], None]
    durable: bool


def _new_thread() -> BackgroundThread:
    return BackgroundThread("elastic-save")


class SaveExecutor:
    """Saves what a State holds, one save at a time.

    Attributes:
        target: where to, and the term that this process holds there.
    """

    def __init__(
        self,
        storage: Storage,
        parts: SavedParts,
        retention: Retention,
        context: WorkerContext,
    ) -> None:
        """Takes what is to be saved where; nothing is touched yet.

        Args:
            storage: where to.
            parts: what is saved.
            retention: which checkpoints are kept.
            context: receives events.
        """
        self.target = SaveTarget(storage, SaveTerm(storage, context), retention, set(), context)
        self._names = parts.names
        self._collector = ShareCollector(parts)
        self._description = Description()
        self._context = context
        self._memory = ImageMemory(parts.optimizers)
        self._thread = _new_thread()
        self._gloo: GlooGroups | None = None
        self._background_peers: Peers | None = None
        self._in_flight: _InFlight | None = None
        self._abandoned: _InFlight | None = None
        self._abandoned_at = 0.0
        self._left_behind: list[Task] = []
        self._reported_late_at = -SLOW_SAVE_REPORT_INTERVAL
        self._saved_step: int | None = None

    @property
    def term(self) -> SaveTerm:
        """The term that this process holds."""
        return self.target.term

    # The world

    def enter(self, gloo: GlooGroups | None) -> bool:
        """The ranks are others from now on.

        Args:
            gloo: to them; None: they are gone.

        Returns:
            Whether a save was under way, which is not finished now.
        """
        self._note_result()
        flight = self._in_flight
        lost = flight is not None and flight.durable and flight.step != self._saved_step
        if self._in_flight is not None:
            self._in_flight.task.abandon()
            self._abandoned, self._in_flight = self._in_flight, None
            self._abandoned_at = time.monotonic()
        self._memory.wait_for_copies()
        self._collector.forget()
        self._gloo, self._background_peers = gloo, None
        return lost

    @property
    def saved_step(self) -> int | None:
        """The step whose state is stored for certain, as far as this rank knows."""
        self._note_result()
        return self._saved_step

    @saved_step.setter
    def saved_step(self, step: int | None) -> None:
        self._saved_step = step

    def _note_result(self) -> None:
        flight = self._in_flight
        if flight is None or not flight.durable:
            return
        if flight.task.has_ended and flight.task.error is None:
            self._saved_step = flight.step

    # Saving

    def warm_up(self, peers: Peers, step: int) -> None:
        """Plans, and takes the memory that saves in the background will need.

        Raises:
            CheckpointError: the state cannot be saved; the same on every rank.
        """
        share = self._collect(peers, step)
        self._memory.fit(share.items, share.tensors, self._thread)

    def save_now(self, peers: Peers, step: int) -> None:
        """Saves, and returns when all of it is durable.

        Raises:
            CheckpointError: it could not be saved; the same on every rank.
        """
        self.ignore_result()
        if self.waits_for_abandoned:
            self._disown()
        began = time.monotonic()
        share = self._collect(peers, step)
        run = self._save_run(share, peers, step, began)
        with self._context.busy(_BUSY):
            run.run(peers, share.content(None))
        self._saved_step = step

    def save_in_background(self, peers: Peers, step: int) -> None:
        """Copies the state, and saves the copy in the background.

        Raises:
            CheckpointError: the state cannot be saved, or the save before could not be finished.
        """
        self.wait()
        began = time.monotonic()
        self._free_image()
        share = self._collect(peers, step)
        image = self._copy(peers, share)
        run = self._save_run(share, peers, step, began, time.monotonic() - began)
        own_peers, share = self._own_peers(peers), share.without_tensors()
        self._launch(step, began, lambda task: run.run(own_peers, share.content(image), task))

    def snapshot_in_background(self, peers: Peers, step: int, snapshots: SnapshotScheduler) -> None:
        """Copies the state, and has the copy made a snapshot in the background, if there is room.

        Raises:
            CheckpointError: the state cannot be saved, or the save before could not be finished.
        """
        self.wait()
        began = time.monotonic()
        self._free_image()
        share = self._collector.collect(peers)
        size = sum(map(size_of, share.items))
        if snapshots.refuses(peers, size, has_image=self._memory.image is not None):
            return
        draft = self._draft(peers, step)
        image = self._copy(peers, share)
        blocked = time.monotonic() - began
        own_peers, share = self._own_peers(peers), share.without_tensors()

        def work(task: Task) -> None:
            content = share.content(image)
            snapshots.take(own_peers, draft, share.plan, content, task, blocked=blocked)

        self._launch(step, began, work, durable=False)

    def _copy(self, peers: Peers, share: RankShare) -> Image:
        """Copies this rank's tensors, while training waits."""
        image = self._memory.fit(share.items, share.tensors, self._thread)
        self._own_peers(peers)
        self._await(self._memory.warming)
        self._memory.stage(image, share.tensors)
        return image

    def _own_peers(self, peers: Peers) -> Peers:
        """All ranks, on a group that only saves in the background use."""
        if self._background_peers is None:
            self._background_peers = self._make_peers(peers)
        return self._background_peers

    def _launch(
        self, step: int, began: float, work: Callable[[Task], None], *, durable: bool = True
    ) -> None:
        self._reported_late_at = -SLOW_SAVE_REPORT_INTERVAL
        self._in_flight = _InFlight(step, began, Task(self._thread, work), work, durable)

    def _collect(self, peers: Peers, step: int) -> RankShare:
        try:
            return self._collector.collect(peers)
        except CheckpointFailed as error:
            self.target.report_failure(peers, step, error)
            raise

    def _draft(self, peers: Peers, step: int) -> Manifest:
        return Manifest(step, 0, world=peers.world, round=self._context.round, entries=self._names)

    def _save_run(
        self, share: RankShare, peers: Peers, step: int, began: float, blocked: float | None = None
    ) -> SaveRun:
        draft = self._draft(peers, step)
        return SaveRun(self.target, draft, share.plan, self._description, began, blocked)

    # What is under way

    @property
    def has_failed(self) -> bool:
        """Whether the save in the background has ended without success."""
        return self._in_flight is not None and self._in_flight.task.has_failed

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return self.waits_for_abandoned or not (
            self._in_flight is None or self._in_flight.task.has_ended
        )

    def began_since(self, step: int) -> bool:
        """Whether a save has begun at this step or later."""
        return self._in_flight is not None and self._in_flight.step >= step

    @property
    def waits_for_abandoned(self) -> bool:
        """Whether a save that was given up still holds the memory that the next one needs."""
        return self._abandoned is not None and not self._abandoned.task.has_ended

    @property
    def under_way(self) -> tuple[float, int] | None:
        """What must end before the next save can begin: its age in seconds, and its step."""
        for one in (self._abandoned, self._in_flight):
            if one is not None and not one.task.has_ended:
                return time.monotonic() - one.began, one.step
        return None

    def _free_image(self) -> None:
        """Waits for the memory of a save that was given up, or takes some more."""
        if self._abandoned is not None:
            self._await(self._abandoned.task, self._abandoned_at + ABANDONED_SAVE_TIMEOUT)
            self.leave_behind()
        if self._abandoned is not None:
            self._await(self._abandoned.task)
        self._abandoned = None

    def leave_behind(self) -> None:
        """Stops waiting for a save that was given up and does not end.

        gloo may miss the end of a peer; then the thread waits until the group's time-out. The next
        save gets another term and memory of its own, so that the two do not disturb each other.
        """
        one = self._abandoned
        if (
            one is None
            or one.task.has_ended
            or time.monotonic() < self._abandoned_at + ABANDONED_SAVE_TIMEOUT
        ):
            return
        self._left_behind = [task for task in self._left_behind if not task.has_ended]
        if len(self._left_behind) < MAX_ABANDONED_SAVES:
            self._disown()
            self._left_behind.append(one.task)
            self._abandoned = None
            self._memory.leave()
            self._thread = _new_thread()

    def _disown(self) -> None:
        """A save that was given up may still run, with names and descriptions of its own."""
        self.term.detach()
        self._description = Description()

    def under_way_after(self, seconds: float) -> tuple[float, int] | None:
        """Waits for what is under way, but not for long.

        Args:
            seconds: at most.

        Returns:
            See ``under_way``.
        """
        until = time.monotonic() + seconds
        for one in (self._abandoned, self._in_flight):
            if one is not None:
                self._await(one.task, until)
        return self.under_way

    def report_late(self, peers: Peers, age: float, step: int) -> None:
        """An event, once a minute: a step is still being saved while the next save is due.

        Args:
            peers: all ranks.
            age: seconds since that save began.
            step: the one that is being saved.
        """
        now = time.monotonic()
        if now >= self._reported_late_at + SLOW_SAVE_REPORT_INTERVAL:
            self._reported_late_at = now
            problem = f"step {step} is still being saved; later saves are delayed until it ends"
            late = CheckpointSaveLate(self.target.storage.where, step, age, problem)
            self.target.note(peers, late)

    def wait(self) -> None:
        """Waits for the save in the background, if there is one.

        Raises:
            CheckpointError: it could not be finished; the same on every rank.
            RuntimeError: a peer is gone.
        """
        flight = self._in_flight
        if flight is None:
            return
        self._await(flight.task)
        self._note_result()
        self._in_flight = None
        if flight.task.error is not None:
            raise flight.task.error

    def finish(self) -> None:
        """Waits for the save in the background, and tries again if it fails: its copy is there.

        Raises:
            CheckpointError: it could not be finished; the same on every rank.
        """
        flight = self._in_flight

        def again() -> None:
            if self._in_flight is None and flight is not None:
                task = Task(self._thread, flight.work)
                self._in_flight = replace(flight, task=task)
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
        for pause in LAST_SAVE_RETRY_PAUSES:
            try:
                return save()
            except CheckpointFailed:
                end = time.monotonic() + pause
                while (left := end - time.monotonic()) > 0:
                    self._raise_if_interrupted()
                    time.sleep(min(left, 0.05))  # no event says that a storage works again
        try:
            return save()
        except CheckpointFailed as error:
            tried = f"{error} (it was tried {len(LAST_SAVE_RETRY_PAUSES) + 1} times)"
            raise CheckpointFailed(tried) from error

    def ignore_result(self) -> None:
        """Waits for the save in the background, and ignores its failure."""
        with suppress(CheckpointError):
            self.wait()

    def close(self) -> None:
        """Gives up a save that is under way, and frees all memory: the ranks are gone."""
        self.enter(None)
        self._memory.close()

    def _await(self, task: Task | None, until: float = inf) -> None:
        if task is not None and not task.has_ended:
            with self._context.busy(_BUSY):  # a slow storage is no hang
                task.wait(self._raise_if_interrupted, until - time.monotonic())

    def _raise_if_interrupted(self) -> None:
        if self._gloo is not None and self._gloo.interrupted():
            raise Interrupted

    def _make_peers(self, peers: Peers) -> Peers:
        if peers.group is None:
            return peers
        assert self._gloo is not None
        return Peers(self._gloo.another())
