"""What ``torch.distributed.checkpoint`` wants to know of a checkpoint, so that it can load it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from elastic_runtime.torch_private import dcp_stored_item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.checkpoint.layout import Item, Plan
    from elastic_runtime.checkpoint.manifest import FileRecord

METADATA = ".metadata"


def encode(plan: Plan, files: Sequence[FileRecord | None]) -> bytes:
    """The content of the file ``.metadata``.

    Args:
        plan: what each rank was to write.
        files: what each rank has written, one part for each item.
    """
    described: dict[str, Any] = {}
    stored: dict[MetadataIndex, Any] = {}
    where: Any = dcp_stored_item()
    for items, file in zip(plan.files, files, strict=True):
        if file is None:
            continue
        for item, part in zip(items, file.parts, strict=True):
            stored[_index(item, described)] = where(
                relative_path=file.name, offset=part.offset, length=part.length
            )
    return pickle.dumps(Metadata(described, storage_data=stored))


def _index(item: Item, described: dict[str, Any]) -> MetadataIndex:
    """Describes an item, and says under which index it is stored."""
    if not item.dtype:
        described[item.key] = BytesStorageMetadata()
        return MetadataIndex(item.key)
    known = described.get(item.key)
    if known is None:
        properties = TensorProperties(dtype=getattr(torch, item.dtype))
        known = TensorStorageMetadata(properties, torch.Size(item.shape), [])
        described[item.key] = known
    offsets = torch.Size(item.offsets)
    known.chunks.append(ChunkStorageMetadata(offsets, torch.Size(item.sizes)))
    return MetadataIndex(item.key, offsets, len(known.chunks) - 1)


def is_as_planned(items: Sequence[Item], file: FileRecord | None) -> bool:
    """Whether a rank has written what it was to write.

    Args:
        items: of its file.
        file: what it says that it has written; None: nothing.
    """
    parts = file.parts if file is not None else ()
    return len(parts) == len(items) and all(
        part.data >= 0 and part.length >= part.data + item.bytes if item.dtype else part.data < 0
        for item, part in zip(items, parts, strict=True)
    )
