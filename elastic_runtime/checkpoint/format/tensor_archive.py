"""The form in which ``torch.save`` keeps a tensor, made around raw bytes without touching them.

It is a zip archive: a pickle that says what the tensor looks like, its bytes, and a directory at
the end. Making one is a matter of microseconds, and what it looks like depends on nothing but
type and shape. The bytes begin at a multiple of 64, and a whole archive is a multiple of 64 long,
so that the next one in the same file is aligned as well. ``torch.load`` does not compare the CRC
of the bytes; it is left 0, and the checksums of the manifest take its place.
"""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from elastic_runtime.system.torch_formats import tensor_pickle

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64

_ROOT = "archive/"
_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_CENTRAL = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_END = struct.Struct("<4sHHHHLLH")
_END_64 = struct.Struct("<4sQHHLLQQQQ")
_END_64_AT = struct.Struct("<4sLQL")
_DATE = 0x21  # the first day that a zip archive knows
_UTF8 = 0x800
_LIMIT = 0xFFFFFFFF  # from here on sizes and offsets need the fields of zip64
_PADDING = 0x4246  # torch's own mark for an extra field without meaning


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The bytes before and after the raw bytes of a tensor."""

    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class _Record:
    name: bytes
    offset: int
    size: int
    crc: int

    @property
    def is_long(self) -> bool:
        return self.size >= _LIMIT

    def local(self, extra: bytes) -> bytes:
        sizes = (_LIMIT, _LIMIT) if self.is_long else (self.size, self.size)
        version = 45 if self.is_long else 20
        fixed = (b"PK\x03\x04", version, _UTF8, 0, 0, _DATE, self.crc, *sizes)
        return _LOCAL.pack(*fixed, len(self.name), len(extra)) + self.name + extra

    def central(self) -> bytes:
        # No record begins beyond 4 GiB: the one that can be large is the last one.
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.size) if self.is_long else b""
        sizes = (_LIMIT, _LIMIT) if self.is_long else (self.size, self.size)
        version = 45 if self.is_long else 20
        fixed = (b"PK\x01\x02", version, version, _UTF8, 0, 0, _DATE, self.crc, *sizes)
        places = (len(self.name), len(extra), 0, 0, 0, 0, self.offset)
        return _CENTRAL.pack(*fixed, *places) + self.name + extra


@lru_cache(maxsize=1024)  # many tensors of a model look alike
def wrapping(dtype: torch.dtype, shape: tuple[int, ...], size: int) -> Wrapping:
    """What makes an archive of the raw bytes of a contiguous tensor.

    Args:
        dtype: of the tensor.
        shape: of the tensor.
        size: how many bytes it has.
    """
    head = b""
    records = []
    small = {
        "data.pkl": tensor_pickle(dtype, shape, size),
        "byteorder": sys.byteorder.encode(),
        "version": b"3\n",
    }
    for name, content in small.items():
        record = _Record(f"{_ROOT}{name}".encode(), len(head), len(content), zlib.crc32(content))
        head += record.local(b"") + content
        records.append(record)
    data = _Record(f"{_ROOT}data/0".encode(), len(head), size, 0)
    long = struct.pack("<HHQQ", 1, 16, size, size) if data.is_long else b""
    begin = len(head) + len(data.local(long)) + 4
    padding = -begin % ALIGNMENT
    head += data.local(long + struct.pack("<HH", _PADDING, padding) + bytes(padding))
    records.append(data)
    return Wrapping(head, _tail(records, len(head) + size))


def _tail(records: list[_Record], at: int) -> bytes:
    directory = b"".join(record.central() for record in records)
    count, size = len(records), len(directory)
    tail = directory
    if at >= _LIMIT:
        tail += _END_64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, at)
        tail += _END_64_AT.pack(b"PK\x06\x07", 0, at + size, 1)
    comment = -(at + len(tail) + _END.size) % ALIGNMENT
    tail += _END.pack(b"PK\x05\x06", 0, 0, count, count, size, min(at, _LIMIT), comment)
    return tail + bytes(comment)
