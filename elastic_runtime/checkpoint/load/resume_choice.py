"""Loads the newest state that is whole, in memory or in storage; an older one if that fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import CheckpointId, newest_first
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.events.checkpoint_events import (
    CheckpointAnew,
    CheckpointDamaged,
    CheckpointPartly,
    CheckpointResumed,
)
from elastic_runtime.parts.per_rank import RankPosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.checkpoint.load.newest_state import ResumeCandidate
    from elastic_runtime.checkpoint.save.save_executor import SaveExecutor
    from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
    from elastic_runtime.checkpoint.storage.storage_contract import Source, Storage
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.parts.saved_parts import SavedParts
    from elastic_runtime.worker.context import WorkerContext
    from elastic_runtime.worker.peers import Peers


class LatestStateLoader:
    """Loads into the parts of a State."""

    def __init__(
        self,
        storage: Storage,
        executor: SaveExecutor,
        snapshots: SnapshotScheduler,
        parts: SavedParts,
        context: WorkerContext,
    ) -> None:
        """Remembers from where to load what.

        Args:
            storage: holds the checkpoints.
            executor: its next saves follow what was loaded.
            snapshots: those in memory.
            parts: whose content is replaced.
            context: receives events.
        """
        self._storage = storage
        self._executor = executor
        self._snapshots = snapshots
        self._parts = parts
        self._context = context

    def stored(self, over: CheckpointId | None = None) -> list[CheckpointId]:
        """What in the storage claims to be whole, the newest first.

        Args:
            over: only what is newer than this; None: all.

        Raises:
            CheckpointError: the storage cannot be read.
        """
        found = newest_first(self._storage.names())
        newer = [one for one in found if over is None or one > over]
        return [one for one in newer if self._storage.has_manifest(one)]

    def load(
        self,
        peers: Peers,
        overwriting: Callable[[int], None],
        *,
        strict: bool,
        over: CheckpointId | None,
    ) -> CheckpointId | None:
        """Loads the newest that is whole.

        Args:
            peers: all ranks, which do the same.
            overwriting: called with a step before the first tensor is touched.
            strict: whether the checkpoint must have exactly the keys of this program.
            over: how far the ranks are in memory, which can still serve: only what is newer is
                of use, and it is read twice, as nothing may be touched before it is known to be
                whole. None: there is nothing to lose.

        Returns:
            What was loaded; None: there is nothing.

        Raises:
            DamagedCheckpoint: there are checkpoints, but none that is whole, and no memory.
            CheckpointError: the storage cannot be read, or the checkpoint does not fit.
        """
        started = time.monotonic()
        problems: list[str] = []
        names = peers.on_first(lambda: [one.name for one in self.stored(over)])
        for candidate in self._snapshots.resume_candidates(peers, newest_first(names), over):
            try:
                origin = self._follow(candidate, peers, overwriting, strict, over is not None)
            except DamagedCheckpoint as error:
                problems.append(str(error))
                if candidate.places is None:
                    self._executor.target.damaged.add(candidate.which)
                where = self._storage.where if candidate.places is None else "memory"
                self._note(peers, CheckpointDamaged(where, candidate.which.step, str(error)))
                origin = ""
            if not origin:
                self._executor.term.pass_over(candidate.which)
                continue
            self._go_on_from(candidate)
            seconds = time.monotonic() - started
            where = self._storage.where
            self._note(peers, CheckpointResumed(where, candidate.which.step, seconds, origin))
            return candidate.which
        if problems and over is None:
            raise DamagedCheckpoint(
                f"no checkpoint in {self._storage.where} is whole ({'; '.join(problems)}); "
                "repair or remove them to start from the beginning"
            )
        return None

    def _follow(
        self,
        candidate: ResumeCandidate,
        peers: Peers,
        overwriting: Callable[[int], None],
        strict: bool,
        careful: bool,
    ) -> str:
        """Loads one state, and says where from; "" if it cannot be reached.

        Raises:
            DamagedCheckpoint: it is not what was written. The parts may have any content now.
        """

        def load(source: Source) -> None:
            note = self._context.note if peers.rank == 0 else None
            loading = LoadRun(
                source,
                candidate.which,
                self._parts,
                RankPosition(peers.rank, peers.world),
                strict=strict,
                careful=careful,
                note=note,
            )
            loaded = loading.run(peers, lambda: overwriting(candidate.which.step))
            if loaded.missing or loaded.surplus:
                missing, surplus = list(loaded.missing), list(loaded.surplus)
                self._note(peers, CheckpointPartly(self._storage.where, missing, surplus))
            if loaded.reset:
                self._note(peers, CheckpointAnew(self._storage.where, list(loaded.reset)))

        if candidate.places is None:
            load(self._storage)
            return "storage"
        snapshot = self._snapshots.open(peers, candidate)
        if snapshot is None:
            return ""
        try:
            load(snapshot)
            return "peer" if any(peers.gather(snapshot.fetched)) else "memory"
        finally:
            snapshot.close()

    def _go_on_from(self, candidate: ResumeCandidate) -> None:
        self._executor.saved_step = candidate.which.step if candidate.places is None else None
        self._executor.term.resume_from(candidate.which)
        self._snapshots.keep_only(candidate.which if candidate.places is not None else None)

    def _note(self, peers: Peers, event: NotedEvent) -> None:
        if peers.rank == 0:
            self._context.note(event)
