"""This node's directory in memory with its snapshots: what is there, and what is removed."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import crc32c

from elastic_runtime.checkpoint.format.manifest import (
    MANIFEST,
    CheckpointId,
    Manifest,
    newest_first,
)
from elastic_runtime.checkpoint.load.newest_state import NodeSnapshot
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointFailed, DamagedCheckpoint

if TYPE_CHECKING:
    from elastic_runtime.protocol.snapshot_requests import SnapshotMemory


class SnapshotStore:
    """The snapshots in the memory of this node.

    Attributes:
        memory: the agent's.
        key: name of the directory in the memory of any node.
        storage: that directory on this node.
    """

    def __init__(self, memory: SnapshotMemory, place: str) -> None:
        """Remembers the place; nothing is touched.

        Args:
            memory: the agent's.
            place: of the checkpoints in storage, the same on all nodes.
        """
        self.memory = memory
        self.key = hashlib.sha256(place.encode()).hexdigest()[:16]
        self.storage = LocalStorage(os.path.join(memory.directory, self.key))

    def offers(self) -> list[NodeSnapshot]:
        """What is here, whole or in part."""
        found = []
        for which in newest_first(self.storage.names()):
            try:
                data = self.storage.read_bytes(which, MANIFEST)
                manifest = Manifest.decode(self.storage.place(which, MANIFEST), data)
            except DamagedCheckpoint:
                continue
            sizes = self.storage.sizes(which)
            files = tuple(file.name for file in manifest.files)
            right = tuple(
                file.name for file in manifest.files if sizes.get(file.name) == file.bytes
            )
            found.append(NodeSnapshot(which, crc32c.crc32c(data), files, right))
        return found

    def create(self, which: CheckpointId) -> None:
        """Makes the directory of a new snapshot.

        Raises:
            CheckpointFailed: the memory cannot be written.
        """
        self.storage.prepare()
        self.storage.discard(which)
        if not self.storage.create(which):
            where = self.storage.place(which)
            raise CheckpointFailed(f"cannot write to {where}: what is there cannot be removed")

    def tidy(self) -> None:
        """Removes what was left half-done."""
        for old in newest_first(self.storage.names()):
            if not self.storage.has_manifest(old):
                self.storage.discard(old)

    def keep_only(self, which: CheckpointId | None) -> None:
        """Removes all others.

        Args:
            which: the one that stays; None: none does.
        """
        for old in newest_first(self.storage.names()):
            if old != which:
                self.storage.discard(old)

    def used(self) -> int:
        """Bytes that all snapshots take in the memory of this agent."""
        total = 0
        for directory, _, names in os.walk(self.memory.directory):
            for name in names:
                try:
                    total += os.stat(os.path.join(directory, name)).st_size
                except FileNotFoundError:  # removed meanwhile
                    continue
        return total
