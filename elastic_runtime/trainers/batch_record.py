"""A few numbers of a job, beside its checkpoints: known to a process before it meets the others.

A schedule is made from the global batch, and that is long before a process learns anything from
the other ranks. So the first one writes down what the job's batch is.
"""

from __future__ import annotations

import json
import os
from typing import Any

import fsspec


class BatchRecord:
    """A small file beside a job's checkpoints."""

    def __init__(self, directory: str, name: str, key: str) -> None:
        """Refers to it; nothing is read or written.

        Args:
            directory: of the job's checkpoints, a path or a URL.
            name: of the file, that of the trainer.
            key: of the batch in it.
        """
        self._path = f"{directory.rstrip('/')}/{name}.json"
        self._key = key

    def batch(self) -> int:
        """How many samples, over all ranks, of the job that the directory belongs to.

        Returns:
            0: there is no job yet, or it cannot be read now.
        """
        return self.number(self._key)

    def number(self, key: str) -> int:
        """One of the numbers; 0: it is not there, or cannot be read now.

        Args:
            key: which.
        """
        found = self._read().get(key)
        return found if isinstance(found, int) and found > 0 else 0

    def write(self, batch: int, **others: int) -> None:
        """Writes it down, if it is not there.

        Args:
            batch: samples over all ranks.
            **others: further numbers; those that are there stay.
        """
        before = self._read()
        after = {**before, self._key: batch, **others}
        if after == before:
            return
        try:
            self._replace(json.dumps(after))
        except Exception:  # saving has errors of its own, which say more
            return

    def _read(self) -> dict[str, Any]:
        try:
            with fsspec.open(self._path, "r") as file:
                found = json.load(file)
        except Exception:  # of whatever storage it is; the job's state says it once more
            return {}
        return found if isinstance(found, dict) else {}

    def _replace(self, text: str) -> None:
        """Whoever reads it meanwhile finds the old or the new one."""
        if "://" in self._path:  # an object appears when it is complete
            with fsspec.open(self._path, "w") as file:
                file.write(text)
            return
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        partial = f"{self._path}.{os.getpid()}"
        with open(partial, "w") as file:
            file.write(text)
        os.replace(partial, self._path)
