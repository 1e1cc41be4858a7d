"""What ``torch.distributed.checkpoint`` (DCP) wants to know of a checkpoint, to load it.

It is a pickle with three objects for each shard: thousands of ranks have millions. Nearly all of
them differ in a few numbers only, and are written here as the bytes that ``pickle`` would make of
them: that takes an eighth of the time of making them and having them pickled.
"""

from __future__ import annotations

import io
import pickle
import struct
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

from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.checkpoint.format.rank_outline import chunk_of
from elastic_runtime.system.torch_formats import dcp_stored_item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_runtime.checkpoint.format.manifest import FileRecord
    from elastic_runtime.checkpoint.format.rank_outline import Outline, SchemaRow
    from elastic_runtime.checkpoint.format.write_plan import WritePlan

METADATA = ".metadata"

_PROTOCOL = 4
_FIELDS = ("fqn", "index", "offset", "relative_path", "length", *vars(Metadata({})))
_INT = struct.Struct("<i")


def encode(plan: WritePlan, files: Sequence[FileRecord | None]) -> bytes:
    """The content of the file ``.metadata``.

    Args:
        plan: what each rank was to write.
        files: what each rank has written, one part for each item.
    """
    index = _Index()
    written = [
        (
            file.name,
            PartColumns.of(file.parts),
            index.items(rank, plan.outlines[rank], plan.rows[rank]),
        )
        for rank, file in enumerate(files)
        if file is not None
    ]
    memo = _Memo([index.described, index.offsets, [name for name, _, _ in written]])
    return memo.content + b"".join(_metadata(memo, index, written)) + pickle.STOP


# One item of a file: its key, where in the tensor it begins (None: it is none), and how many
# pieces of the tensor were named before.
_Item = tuple[str, "torch.Size | None", int]


class _Index:
    """What is stored. What is equal is one object: that makes a small pickle, and fast."""

    def __init__(self) -> None:
        self.described: dict[str, Any] = {}
        self.offsets: list[torch.Size] = []
        self._sizes: dict[tuple[int, ...], torch.Size] = {}
        self._chunks: dict[tuple[tuple[int, ...], tuple[int, ...]], ChunkStorageMetadata] = {}
        self._properties: dict[str, TensorProperties] = {}

    def items(self, rank: int, outline: Outline, rows: Sequence[int]) -> list[_Item]:
        """Takes note of what the file of a rank holds."""
        found: list[_Item] = []
        # Thousands of tensors are of few shapes, and cut alike.
        cut_alike: dict[tuple[int, tuple[int, ...]], ChunkStorageMetadata] = {}
        for row in rows:
            one = outline.schema[row]
            key = one.key_on(rank) if one.own else one.key
            if not one.dtype:
                self.described[key] = BytesStorageMetadata()
                found.append((key, None, 0))
                continue
            alike = outline.pattern[row], one.shape
            chunk = cut_alike.get(alike)
            if chunk is None:
                chunk = cut_alike[alike] = self._chunk(*chunk_of(outline.cut(row), one.shape))
            known = self.described.get(key)
            if known is None:
                known = self.described[key] = self._tensor(one)
            found.append((key, chunk.offsets, len(known.chunks)))
            known.chunks.append(chunk)
        return found

    def _tensor(self, row: SchemaRow) -> TensorStorageMetadata:
        properties = self._properties.get(row.dtype)
        if properties is None:
            properties = TensorProperties(dtype=getattr(torch, row.dtype))
            self._properties[row.dtype] = properties
        return TensorStorageMetadata(properties, self._size(row.shape), [])

    def _chunk(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> ChunkStorageMetadata:
        found = self._chunks.get((offsets, sizes))
        if found is None:
            found = ChunkStorageMetadata(self._size(offsets), self._size(sizes))
            self._chunks[offsets, sizes] = found
            self.offsets.append(found.offsets)
        return found

    def _size(self, lengths: tuple[int, ...]) -> torch.Size:
        found = self._sizes.get(lengths)
        if found is None:
            found = self._sizes[lengths] = torch.Size(lengths)
        return found


# The pickle


class _Memo:
    """The beginning of a pickle: makes some objects, so that what follows can speak of them.

    Attributes:
        content: its bytes, after which nothing is left on the stack of the one who reads them.
    """

    def __init__(self, objects: list[Any]) -> None:
        out = io.BytesIO()
        pickler = pickle.Pickler(out, _PROTOCOL)
        self._kept = [objects, Metadata, MetadataIndex, dcp_stored_item(), *_FIELDS]
        pickler.dump(self._kept)
        # As long as what it replaces, which the frame counts.
        self.content = out.getvalue().removesuffix(pickle.STOP) + pickle.POP
        self._numbers = {name: number for name, (number, _) in pickler.memo.copy().items()}

    def __getitem__(self, shared: object) -> bytes:
        """What puts one of the objects on the stack again."""
        number = self._numbers[id(shared)]
        if number < 256:
            return pickle.BINGET + bytes([number])
        return pickle.LONG_BINGET + number.to_bytes(4, "little")

    def begin(self, cls: type) -> bytes:
        """What makes an object of a class; its attributes follow, by name, and then ``_END``."""
        return self[cls] + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT + pickle.MARK


_END = pickle.SETITEMS + pickle.BUILD


def _metadata(
    memo: _Memo, index: _Index, written: Sequence[tuple[str, PartColumns, Sequence[_Item]]]
) -> Iterator[bytes]:
    field = {name: memo[name] for name in _FIELDS}
    yield memo.begin(Metadata)
    for name in vars(Metadata({})):
        yield field[name]
        if name == "state_dict_metadata":
            yield memo[index.described]
        elif name == "storage_data":
            yield pickle.EMPTY_DICT
            yield from _storage_data(memo, index, written)
        else:
            yield pickle.NONE
    yield _END


def _storage_data(
    memo: _Memo, index: _Index, written: Sequence[tuple[str, PartColumns, Sequence[_Item]]]
) -> Iterator[bytes]:
    """For each item where it is."""
    field = {name: memo[name] for name in _FIELDS}
    begin = memo.begin(MetadataIndex) + field["fqn"]
    of_key = {key: begin + memo[key] + field["index"] for key in index.described}
    of_offsets: dict[torch.Size | None, bytes] = {
        offsets: field["offset"] + memo[offsets] + _END for offsets in index.offsets
    }
    of_offsets[None] = _END
    length_follows = field["length"]
    for name, parts, items in written:
        place = memo.begin(dcp_stored_item()) + field["relative_path"] + memo[name]
        place += field["offset"]
        pieces = [pickle.MARK]
        for (key, offsets, number), offset, length in zip(
            items, parts.offsets, parts.lengths, strict=True
        ):
            pieces += (
                of_key[key],
                pickle.NONE if offsets is None else _number(number),
                of_offsets[offsets],
                place,
                _number(offset),
                length_follows,
                _number(length),
                _END,
            )
        pieces.append(pickle.SETITEMS)
        yield b"".join(pieces)


def _number(number: int) -> bytes:
    if number < 1 << 31:
        return pickle.BININT + _INT.pack(number)
    return pickle.LONG1 + b"\x08" + number.to_bytes(8, "little")


def not_as_planned(plan: WritePlan, files: Sequence[FileRecord | None]) -> int | None:
    """The first rank that has not written what it was to write; None if all have.

    Args:
        plan: what each rank was to write.
        files: what each rank says that it has written; None: nothing.
    """
    for rank, (sizes, file) in enumerate(zip(plan.sizes, files, strict=True)):
        parts = PartColumns.of(file.parts if file is not None else ())
        if len(parts) != len(sizes) or not all(
            data >= 0 and length >= data + size if size >= 0 else data < 0
            for size, length, data in zip(sizes, parts.lengths, parts.data, strict=True)
        ):
            return rank
    return None
