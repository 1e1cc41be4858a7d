"""Checkpoints that somebody with malice has changed, and sealed again."""

from __future__ import annotations

import io
import json
import os
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import crc32c
import torch

from elastic_runtime.checkpoint.format.dcp_metadata import METADATA
from elastic_runtime.checkpoint.format.manifest import MANIFEST, FileRecord, Manifest, Part
from elastic_runtime.system.torch_formats import dcp_stored_item

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Trap:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def manifest_of(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint in a directory."""
    return Manifest.decode("", (checkpoint / MANIFEST).read_bytes())


def seal(checkpoint: Path, *files: FileRecord) -> None:
    """Replaces the manifest's records of these files."""
    manifest = manifest_of(checkpoint)
    changed = {file.name: file for file in files}
    records = tuple(changed.get(file.name, file) for file in manifest.files)
    (checkpoint / MANIFEST).write_bytes(replace(manifest, files=records).encode())


def replace_file(checkpoint: Path, name: str, data: bytes, *, tensor: int = -1) -> None:
    """Replaces a file by one that is a single part.

    Args:
        checkpoint: its directory.
        name: of the file.
        data: what is in it from now on.
        tensor: where in it the bytes of a tensor begin; -1: it holds no tensor.
    """
    (checkpoint / name).write_bytes(data)
    crc = crc32c.crc32c(data)
    part = Part(0, len(data), crc, tensor)
    seal(checkpoint, FileRecord(name, len(data), crc, (part,)))


def change_metadata(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Changes what ``.metadata`` says, in place."""
    metadata = pickle.loads((checkpoint / METADATA).read_bytes())
    change(metadata)
    replace_file(checkpoint, METADATA, pickle.dumps(metadata))


def put_value(checkpoint: Path, value: object) -> None:
    """Makes each value of a checkpoint another one."""
    out = io.BytesIO()
    torch.save(value, out)
    put_bytes(checkpoint, out.getvalue())


def put_bytes(checkpoint: Path, data: bytes) -> None:
    """Makes these the bytes of each value of a checkpoint."""
    replace_file(checkpoint, "rank-0.distcp", data)

    def point(metadata: Any) -> None:
        for index in metadata.storage_data:
            metadata.storage_data[index] = dcp_stored_item()("rank-0.distcp", 0, len(data))

    change_metadata(checkpoint, point)


def make_newer(checkpoint: Path) -> None:
    """Makes the manifest one of a format that is yet to come."""
    path = checkpoint / MANIFEST
    body = json.loads(path.read_bytes()) | {"format": 3, "news": True}
    del body["crc32c"]
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**body, "crc32c": crc32c.crc32c(canonical)}))
