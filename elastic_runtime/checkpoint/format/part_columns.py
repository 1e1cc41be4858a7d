"""The parts of a file as columns of numbers: a checkpoint of thousands of ranks has millions.

In a checkpoint of many parts the manifest does not list them. Those of each file are a *section* of
the file ``.outline``, which is read and verified without the others: a rank that loads needs those
of one or two files.

Nothing here needs torch.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Self, overload

import crc32c

from elastic_runtime.checkpoint.format.manifest import OUTLINE, Part
from elastic_runtime.errors import DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elastic_runtime.checkpoint.format.manifest import FileRecord, Manifest
    from elastic_runtime.checkpoint.storage.storage_contract import Source

_COLUMNS = "QqI"  # length, data and crc32c, as in ``Part``; little-endian in a section
_WIDTH = 20  # bytes of a part in all columns
_STRETCH = 1 << 20  # bytes that are read at once, unless a single section is larger
_FAST = 1  # of zlib: checksums do not get shorter, and the rest does at once


class PartColumns(Sequence[Part]):
    """Parts that follow each other without gaps.

    Attributes:
        lengths, data, sums: see ``Part``; by part.
        offsets: where each begins.
    """

    __slots__ = ("data", "lengths", "offsets", "sums")

    def __init__(self, lengths: array[int], data: array[int], sums: array[int]) -> None:
        """Takes over the columns, which must not change from then on."""
        self.lengths = lengths
        self.data = data
        self.sums = sums
        ends = accumulate(lengths, initial=0)
        self.offsets = array("Q", (offset for offset, _ in zip(ends, lengths, strict=False)))

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Self:
        """The same in columns."""
        if isinstance(parts, cls):
            return parts
        rows = [(part.length, part.data, part.crc32c) for part in parts]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(*(array(code, each) for code, each in zip(_COLUMNS, columns, strict=True)))

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> list[Part]: ...
    def __getitem__(self, at: int | slice) -> Part | list[Part]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        return Part(self.offsets[at], self.lengths[at], self.sums[at], self.data[at])

    def pack(self) -> bytes:
        """A section: the columns, compressed."""
        columns = (self.lengths, self.data, self.sums)
        return zlib.compress(b"".join(map(_little, columns)), _FAST)

    @classmethod
    def unpack(cls, where: str, section: bytes, file: FileRecord) -> Self:
        """Reads what ``pack`` gave.

        Args:
            where: the place of the section, for the error.
            section: its bytes.
            file: of which these are the parts.

        Raises:
            DamagedCheckpoint: it cannot be that. No memory is taken for more than the items that
                the manifest says.
        """
        size = file.items * _WIDTH
        try:
            unpacking = zlib.decompressobj()
            raw = unpacking.decompress(section, size + 1)
            if len(raw) != size or not unpacking.eof or unpacking.unused_data:
                raise ValueError
            made = cls(*_columns(raw, file.items))
            pairs = zip(made.data, made.lengths, strict=True)
            if not all(-1 <= data <= length for data, length in pairs):
                raise ValueError
            if sum(made.lengths) != file.bytes:
                raise ValueError
        except (ValueError, OverflowError, zlib.error):
            raise DamagedCheckpoint(
                f"{where} is refused: it does not say what {file.name} consists of"
            ) from None
        return made


def _columns(raw: bytes, count: int) -> Iterable[array[int]]:
    at = 0
    for code in _COLUMNS:
        column = array(code)
        end = at + count * column.itemsize
        column.frombytes(raw[at:end])
        if sys.byteorder == "big":
            column.byteswap()
        yield column
        at = end


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


# Read from ``.outline``


def read_parts(source: Source, manifest: Manifest, names: Iterable[str]) -> dict[str, PartColumns]:
    """The parts of some files, by name.

    Args:
        source: where the checkpoint is.
        manifest: its own.
        names: of files whose parts the manifest does not list.

    Raises:
        DamagedCheckpoint: ``.outline`` is not what was written.
    """
    sections = manifest.sections()
    files = {file.name: file for file in manifest.files}
    wanted = sorted({*names} & sections.keys(), key=lambda name: sections[name].offset)
    read = read_outline(source, manifest, [sections[name] for name in wanted])
    where = source.place(manifest.id, OUTLINE)
    return {
        name: PartColumns.unpack(where, section, files[name])
        for name, section in zip(wanted, read, strict=True)
    }


def read_outline(source: Source, manifest: Manifest, parts: Sequence[Part]) -> list[bytes]:
    """Some parts of ``.outline``, verified.

    Args:
        source: where the checkpoint is.
        manifest: its own.
        parts: in the order of the file.

    Raises:
        DamagedCheckpoint: it is not what was written.
    """
    found = []
    with source.reader(manifest.id, OUTLINE) as reader:
        for stretch in _stretches(parts):
            begin = stretch[0].offset
            data = bytearray(sum(part.length for part in stretch))
            reader.expect(begin, len(data))
            reader.readinto(begin, [memoryview(data)])
            for part in stretch:
                at = part.offset - begin
                one = bytes(data[at : at + part.length])
                if crc32c.crc32c(one) != part.crc32c:
                    where = source.place(manifest.id, OUTLINE)
                    raise DamagedCheckpoint(f"{where} is damaged: its checksum does not match")
                found.append(one)
    return found


def _stretches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts that follow each other, to be read at once."""
    stretch: list[Part] = []
    for part in parts:
        end = stretch[-1].offset + stretch[-1].length if stretch else part.offset
        if part.offset != end or end - (stretch or [part])[0].offset >= _STRETCH:
            yield stretch
            stretch = []
        stretch.append(part)
    if stretch:
        yield stretch
