"""What ``.metadata`` says of a checkpoint, read without running anything that it brings along.

The file is a pickle of a few classes of ``torch.distributed.checkpoint`` (DCP). Nothing else is
built from it, and nothing in it is believed: each item must be a part that the manifest lists,
and long enough for what the metadata says of it, before any memory is taken for it.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed.checkpoint import metadata as dcp

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.stored_items import Piece, Stored, StoredTensor, StoredValue
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.system.torch_formats import dcp_memory_format, dcp_stored_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_runtime.checkpoint.format.manifest import FileRecord, Part

    _Places = Mapping[tuple[str, tuple[int, ...]], tuple[str, Part]]

_T = TypeVar("_T")

_CLASSES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (
        torch.Size,
        dcp.Metadata,
        dcp.MetadataIndex,
        dcp.TensorStorageMetadata,
        dcp.BytesStorageMetadata,
        dcp.ChunkStorageMetadata,
        dcp.TensorProperties,
        dcp.StorageMeta,
        dcp_memory_format(),
        dcp_stored_item(),
    )
}
# They number the objects of a pickle, and room is made for as many as the number says.
_NUMBERING = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
# All others that have arguments of a fixed length, as many in a row as there are (but not so many
# that the search takes memory); and the two that texts begin with, whose length comes first.
_OTHERS = re.compile(
    b"(?:%s){1,4096}+"
    % b"|".join(
        re.escape(op.code.encode("latin-1")) + b"(?s:.{%d})" % (op.arg.n if op.arg else 0)
        for op in pickletools.opcodes
        if op.name not in _NUMBERING and (op.arg is None or op.arg.n >= 0)
    )
)
_TEXTS = {b"\x8c": 1, b"X": 4}


class _Unpickler(pickle.Unpickler):
    """Builds nothing but the few classes that metadata consists of."""

    def find_class(self, module: str, name: str) -> Any:
        if found := _CLASSES.get((module, name)):
            return found
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _layout
        if (module, name) == ("builtins", "getattr"):  # so Python 3.11.0 to 3.11.3 pickle members
            return _member
        raise DamagedCheckpoint(f"it asks for {module}.{name}, which no checkpoint of ours needs")


def _layout(name: str) -> torch.layout:
    layout = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(layout, torch.layout):
        raise DamagedCheckpoint(f"it asks for the layout {name!r}")
    return layout


def _member(enumeration: object, name: str) -> Any:
    if enumeration is not dcp_memory_format() or name not in dcp_memory_format().__members__:
        raise DamagedCheckpoint(f"it asks for {name!r} of {enumeration!r}")
    return dcp_memory_format()[name]


def read_contents(where: str, data: bytes, files: Iterable[FileRecord]) -> dict[str, Stored]:
    """Reads what a checkpoint contains, and builds nothing else.

    Args:
        where: the path of ``.metadata``, for errors.
        data: what is in it.
        files: the only ones that the content may be in, with their parts.

    Returns:
        What is stored, by key.

    Raises:
        DamagedCheckpoint: it is not metadata, asks for anything foreign, or does not describe
            what the files consist of.
    """
    try:
        metadata = _unpickled(data)
        parts = {(file.name, part.offset): part for file in files for part in file.parts}
        places = _places(metadata.storage_data, parts)
        return {
            checked_type(key, str): _stored(key, description, places)
            for key, description in metadata.state_dict_metadata.items()
        }
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"{where} is refused: {error}") from None
    except Exception as error:
        # A pickle that was tampered with can raise anything.
        raise DamagedCheckpoint(f"{where} is refused: {error!r}") from None


def _unpickled(data: bytes) -> dcp.Metadata:
    if not _numbers_nothing(data):
        for code, number, _ in pickletools.genops(data):
            if code.name in _NUMBERING and not 0 <= int(number or 0) <= len(data):
                raise DamagedCheckpoint("it speaks of more objects than it can have")
    return checked_type(_Unpickler(io.BytesIO(data)).load(), dcp.Metadata)


def _numbers_nothing(data: bytes) -> bool:
    """Whether no operation of a pickle is one of ``_NUMBERING``; False if that is not certain.

    What Python has written since 3.8 has none. ``pickletools`` takes four times as long to see
    that, on each rank that loads what thousands have written.
    """
    at = 0
    while at < len(data):
        if found := _OTHERS.match(data, at):
            at = found.end()
        elif width := _TEXTS.get(data[at : at + 1]):
            at += 1 + width
            at += int.from_bytes(data[at - width : at], "little")
        else:
            return False
    return at == len(data)


def _places(
    storage_data: Mapping[dcp.MetadataIndex, Any], parts: Mapping[tuple[str, int], Part]
) -> _Places:
    """In which file and part each item is, by its key and the offsets of its piece."""
    places = {}
    for index, item in storage_data.items():
        name, offset = item.relative_path, item.offset
        part = parts.get((name, offset))
        if part is None or part.length != item.length or not part.length:
            raise DamagedCheckpoint(
                f"it points to {item.length!r} bytes at {offset!r} of {name!r}, "
                "which the manifest does not list"
            )
        if item.transform_descriptors:
            raise DamagedCheckpoint(f"{index.fqn} is stored with an extension of DCP")
        places[index.fqn, tuple(index.offset or ())] = name, part
    return places


def _stored(key: str, description: object, places: _Places) -> Stored:
    if isinstance(description, dcp.BytesStorageMetadata):
        name, part = places[key, ()]
        return StoredValue(name, part)
    tensor = checked_type(description, dcp.TensorStorageMetadata)
    dtype = checked_type(tensor.properties.dtype, torch.dtype)
    whole = Chunk.of(sizes_of(tensor.size))
    pieces = tuple(_piece(key, whole, dtype, chunk, places) for chunk in tensor.chunks)
    if sum(piece.chunk.count for piece in pieces) != whole.count:
        raise DamagedCheckpoint(f"{key} is not stored as a whole")
    return StoredTensor(whole.sizes, dtype, pieces=pieces)


def _piece(key: str, whole: Chunk, dtype: torch.dtype, found: object, places: _Places) -> Piece:
    described = checked_type(found, dcp.ChunkStorageMetadata)
    chunk = Chunk(sizes_of(described.offsets), sizes_of(described.sizes))
    name, part = places[key, chunk.offsets]
    if not whole.holds(chunk):
        raise DamagedCheckpoint(f"{key} has a piece that lies outside of it")
    return piece_of(key, dtype, name, part, chunk)


def piece_of(key: str, dtype: torch.dtype, file: str, part: Part, chunk: Chunk) -> Piece:
    """A piece of a tensor.

    Raises:
        DamagedCheckpoint: the part has no room for it.
    """
    if part.data < 0 or part.data + chunk.count * dtype.itemsize > part.length:
        raise DamagedCheckpoint(f"{key} is larger than what is stored of it")
    return Piece(file, part, chunk)


def sizes_of(numbers: Sequence[object]) -> tuple[int, ...]:
    """The sizes of a tensor, or where a piece of it begins, as the file claims.

    Raises:
        DamagedCheckpoint: no tensor can have them.
    """
    sizes = tuple(checked_type(number, int) for number in numbers)
    # Such a tensor can exist, even if it is empty.
    if any(size < 0 for size in sizes) or math.prod(max(1, size) for size in sizes) >= 1 << 60:
        raise DamagedCheckpoint(f"no tensor has the sizes {sizes}")
    return sizes


def checked_type(value: Any, kind: type[_T]) -> _T:
    """The value, if it is of the very type that it should be.

    Raises:
        DamagedCheckpoint: it is not.
    """
    if type(value) is not kind:
        raise DamagedCheckpoint(f"there is {value!r:.80} where {kind.__name__} should be")
    return value
