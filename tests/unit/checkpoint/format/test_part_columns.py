"""Parts in columns are the same parts, in few bytes, and nothing else is taken for them."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.manifest import FileRecord, Part
from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.errors import DamagedCheckpoint

PARTS = (Part(0, 412, 5, 128), Part(412, 1 << 40, 0xFFFFFFFF, 64), Part(412 + (1 << 40), 7, 9))


def file_of(parts: tuple[Part, ...]) -> FileRecord:
    size = sum(part.length for part in parts)
    return FileRecord("rank-3.distcp", size, 1, unlisted=len(parts))


@st.composite
def several(draw: st.DrawFn) -> tuple[Part, ...]:
    parts, end = [], 0
    for _ in range(draw(st.integers(1, 20))):
        length = draw(st.integers(0, 1 << 44))
        parts.append(
            Part(end, length, draw(st.integers(0, 2**32 - 1)), draw(st.integers(-1, length)))
        )
        end += length
    return tuple(parts)


@given(several())
def test_parts_survive_a_section(parts: tuple[Part, ...]) -> None:
    found = PartColumns.unpack("here", PartColumns.of(parts).pack(), file_of(parts))
    assert tuple(found) == parts
    assert found[1:] == list(parts[1:])


def test_no_flipped_bit_in_a_section_is_taken_for_more_than_there_is() -> None:
    section = PartColumns.of(PARTS).pack()
    for position in range(len(section) * 8):
        changed = bytearray(section)
        changed[position // 8] ^= 1 << position % 8
        try:
            found = PartColumns.unpack("here", bytes(changed), file_of(PARTS))
        except DamagedCheckpoint as error:
            assert "here is refused" in str(error)
        else:
            assert sum(found.lengths) == file_of(PARTS).bytes


@pytest.mark.parametrize(
    "section",
    [
        b"",
        b"garbage",
        PartColumns.of(PARTS).pack()[:-1],
        PartColumns.of(PARTS).pack() + b"more",
        PartColumns.of(PARTS[:2]).pack(),
        PartColumns.of((*PARTS, Part(0, 0, 0))).pack(),
        PartColumns.of((PARTS[0], PARTS[1], Part(0, 6, 9))).pack(),  # a byte too few
        PartColumns.of((PARTS[0], PARTS[1], Part(0, 7, 9, 8))).pack(),  # data after its end
        PartColumns.of((PARTS[0], PARTS[1], Part(0, 7, 9, -2))).pack(),
    ],
)
def test_what_is_no_section_of_the_file_is_refused(section: bytes) -> None:
    with pytest.raises(DamagedCheckpoint, match=r"here is refused.*rank-3\.distcp"):
        PartColumns.unpack("here", section, file_of(PARTS))


def test_a_section_that_grows_takes_no_memory() -> None:
    bomb = zlib.compress(bytes(100 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedCheckpoint):
            PartColumns.unpack("here", bomb, file_of(PARTS))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
