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

    from elastic_runtime.checkpoint.layout import Plan
    from elastic_runtime.checkpoint.manifest import FileRecord, Part
    from elastic_runtime.checkpoint.outline import Item

METADATA = ".metadata"


class Description:
    """Encodes the metadata of one save after the other.

    It stays the same while plan and lengths do, and for thousands of small tensors making it would
    be the longest part of a save.
    """

    def __init__(self) -> None:
        """Knows of no save yet."""
        self._of: tuple[Plan, list[int]] | None = None
        self._content = b""

    def encode(self, plan: Plan, files: Sequence[FileRecord | None]) -> bytes:
        """The content of the file ``.metadata``.

        Args:
            plan: what each rank was to write.
            files: what each rank has written, one part for each item.
        """
        lengths = [part.length for file in files if file is not None for part in file.parts]
        if self._of is None or self._of[0] is not plan or self._of[1] != lengths:
            self._content = _encode(plan, files)
            self._of = plan, lengths
        return self._content


def _encode(plan: Plan, files: Sequence[FileRecord | None]) -> bytes:
    index = _Index()
    for rank, file in enumerate(files):
        if file is None:
            continue
        for item, part in zip(plan.file(rank), file.parts, strict=True):
            index.add(item, file.name, part)
    return pickle.dumps(Metadata(index.described, storage_data=index.stored))


class _Index:
    """Where everything is. What is equal is one object: that makes a small pickle, and fast."""

    def __init__(self) -> None:
        self.described: dict[str, Any] = {}
        self.stored: dict[MetadataIndex, Any] = {}
        self._where: Any = dcp_stored_item()
        self._sizes: dict[tuple[int, ...], torch.Size] = {}
        self._properties: dict[str, TensorProperties] = {}

    def add(self, item: Item, file: str, part: Part) -> None:
        """Takes note of one item."""
        place = self._where(relative_path=file, offset=part.offset, length=part.length)
        if item.dtype:
            self.stored[self._chunk(item)] = place
        else:
            self.described[item.key] = BytesStorageMetadata()
            self.stored[MetadataIndex(item.key)] = place

    def _chunk(self, item: Item) -> MetadataIndex:
        known = self.described.get(item.key)
        if known is None:
            properties = self._properties.get(item.dtype)
            if properties is None:
                properties = TensorProperties(dtype=getattr(torch, item.dtype))
                self._properties[item.dtype] = properties
            known = TensorStorageMetadata(properties, self._size(item.shape), [])
            self.described[item.key] = known
        offsets = self._size(item.offsets)
        known.chunks.append(ChunkStorageMetadata(offsets, self._size(item.sizes)))
        return MetadataIndex(item.key, offsets, len(known.chunks) - 1)

    def _size(self, lengths: tuple[int, ...]) -> torch.Size:
        found = self._sizes.get(lengths)
        if found is None:
            found = self._sizes[lengths] = torch.Size(lengths)
        return found


def not_as_planned(plan: Plan, files: Sequence[FileRecord | None]) -> int | None:
    """The first rank that has not written what it was to write; None if all have.

    Args:
        plan: what each rank was to write.
        files: what each rank says that it has written; None: nothing.
    """
    for rank, (sizes, file) in enumerate(zip(plan.sizes, files, strict=True)):
        parts = file.parts if file is not None else ()
        if len(parts) != len(sizes) or not all(
            part.data >= 0 and part.length >= part.data + size if size >= 0 else part.data < 0
            for size, part in zip(sizes, parts, strict=True)
        ):
            return rank
    return None
