"""Whose checkpoints a directory holds: those of another job are never mixed with ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import Manifest, newest_first
from elastic_runtime.errors import CheckpointUsageError, DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.checkpoint.storage.storage_contract import Storage


def check_owner(storage: Storage, entries: Sequence[str]) -> None:
    """Makes sure that what is saved there may be this job's: it has an entry of the same name.

    Args:
        storage: where this job is going to save.
        entries: the names of what it saves.

    Raises:
        CheckpointUsageError: the newest checkpoint has none of these entries.
        CheckpointError: the storage cannot be read.
    """
    newest = _newest_manifest(storage)
    if newest is None or not newest.entries or set(newest.entries) & set(entries):
        return
    raise CheckpointUsageError(
        f"{storage.where} holds checkpoints of another job: the newest one, "
        f"{newest.id.name}, holds {', '.join(newest.entries)}, and this job "
        f"{', '.join(entries)}; use another directory"
    )


def _newest_manifest(storage: Storage) -> Manifest | None:
    """The manifest of the newest checkpoint that has a readable one."""
    for which in newest_first(storage.names()):
        try:
            if manifest := storage.read_manifest(which):
                return manifest
        except DamagedCheckpoint:
            continue
    return None
