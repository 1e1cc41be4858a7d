"""The global batch of a job, beside its checkpoints: known to a process before its optimizers.

A schedule is made from the number of steps, and that is long before a process learns anything from
the other ranks. So the first one writes down what the job's batch is.
"""

from __future__ import annotations

import json
from typing import Any

import fsspec


class BatchRecord:
    """A small file beside a job's checkpoints."""

    def __init__(self, directory: str, name: str, key: str) -> None:
        """Refers to it; nothing is read or written.

        Args:
            directory: of the job's checkpoints, a path or a URL.
            name: of the file, that of the trainer.
            key: under which the number is in it.
        """
        self._path = f"{directory.rstrip('/')}/{name}.json"
        self._key = key

    def batch(self) -> int:
        """How many samples, over all ranks, of the job that the directory belongs to.

        Returns:
            0: there is no job yet, or it cannot be read now.
        """
        try:
            with self._file("r") as file:
                found = json.load(file)[self._key]
        except Exception:  # of whatever storage it is; the job's state says it once more
            return 0
        return found if isinstance(found, int) and found > 0 else 0

    def write(self, batch: int) -> None:
        """Writes it down, if it is not there.

        Args:
            batch: samples over all ranks.
        """
        if self.batch() == batch:
            return
        try:
            with self._file("w") as file:
                json.dump({self._key: batch}, file)
        except Exception:  # saving has errors of its own, which say more
            return

    def _file(self, mode: str) -> Any:
        return fsspec.open(self._path, mode, auto_mkdir=True)
