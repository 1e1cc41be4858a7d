"""Checkpoints of a few bytes, made without torch, to try a storage with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c

from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord, Manifest, Part

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.storage.storage_contract import Storage

HOLDER: dict[str, object] = {"run": "r1", "round": 2, "host": "here"}
FILE = "rank-0.distcp"


def write(storage: Storage, which: CheckpointId, name: str, *pieces: bytes) -> FileRecord:
    """One file, one part for each piece."""
    content, parts = b"".join(pieces), []
    with storage.writer(which, name, len(content)) as out:
        for piece in pieces:
            offset = parts[-1].offset + parts[-1].length if parts else 0
            parts.append(Part(offset, len(piece), crc32c.crc32c(piece)))
            out.write([memoryview(piece)])
    return FileRecord(name, len(content), crc32c.crc32c(content), tuple(parts))


def put(storage: Storage, step: int, term: int = 1, saved_at: float = 0.0) -> Manifest:
    """A whole checkpoint with one file."""
    which = CheckpointId(term=term, step=step)
    storage.create(which)
    file = write(storage, which, FILE, b"state ", f"of {step}".encode())
    manifest = Manifest(
        step=step, term=term, world=1, entries=("model",), files=(file,), saved_at=saved_at
    )
    storage.commit(manifest)
    return manifest
