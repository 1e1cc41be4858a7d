"""What rank 0 does for all ranks in a save: hold the term, make the directory, commit."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.manifest import CheckpointId, FileRecord, Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elastic_runtime.checkpoint.storage import CheckpointDirectory
    from elastic_runtime.worker.context import WorkerContext


class Tenure:
    """The term that this process holds, taken before its first save."""

    def __init__(self, directory: CheckpointDirectory, context: WorkerContext) -> None:
        """Remembers who would take a term where; none is taken yet."""
        self._directory = directory
        self._context = context
        self._term = 0

    def hold(self) -> int:
        """The term, which is the newest one of the directory.

        Raises:
            CheckpointError: somebody else has taken a newer one, or none can be taken.
        """
        if self._term:
            self._directory.check_term(self._term)
        else:
            holder = {
                "run": self._context.run,
                "round": self._context.round,
                "host": socket.gethostname(),
            }
            self._directory.prepare()
            self._term = self._directory.take_term(holder)
        return self._term


class Saving:
    """One save."""

    def __init__(
        self,
        directory: CheckpointDirectory,
        tenure: Tenure,
        step: int,
        *,
        world: int,
        round: int,
        entries: tuple[str, ...],
    ) -> None:
        """Takes what the manifest will say.

        Args:
            directory: where to.
            tenure: gives the term.
            step: the step whose state it is.
            world: how many ranks write.
            round: the round that they belong to.
            entries: the names of what is saved.
        """
        self._directory = directory
        self._tenure = tenure
        self._step, self._world, self._round, self._entries = step, world, round, entries
        self._which: CheckpointId | None = None

    def begin(self) -> Path:
        """Makes the directory, which is no checkpoint yet.

        Raises:
            CheckpointError: the term is lost, or the directory cannot be made.
        """
        which = CheckpointId(self._tenure.hold(), self._step)
        path = self._directory.create(which)
        self._which = which
        return path

    def commit(self, files: Sequence[FileRecord]) -> None:
        """Makes it a checkpoint.

        Args:
            files: everything that is in the directory, durable.

        Raises:
            CheckpointError: the term is lost, or the manifest cannot be written.
        """
        if self._which is None:
            raise RuntimeError("commit() comes after begin()")
        self._directory.commit(
            Manifest(
                step=self._which.step,
                term=self._which.term,
                world=self._world,
                round=self._round,
                entries=self._entries,
                files=tuple(files),
                saved_at=time.time(),
            )
        )

    def discard(self) -> None:
        """Removes what a save that failed has left."""
        if self._which is not None:
            self._directory.discard(self._which)
