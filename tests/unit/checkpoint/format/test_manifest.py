"""Names, terms, and manifests and parts in columns, in which no change goes unnoticed."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.crc_combine import combined_crc
from elastic_runtime.checkpoint.format.manifest import (
    CheckpointId,
    FileRecord,
    Manifest,
    Part,
    half_pruned,
    highest_term,
    newest_first,
    older_terms,
)
from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.errors import DamagedCheckpoint, UnknownFormat
from tests.hostile import make_newer

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = Manifest(
    step=120,
    term=3,
    world=2,
    round=7,
    entries=("model", "optim"),
    files=(
        FileRecord("rank-0.distcp", 512, 99, (Part(0, 412, 5, 128), Part(412, 100, 6))),
        FileRecord(".metadata", 10, 7, (Part(0, 10, 7),)),
    ),
    saved_at=1.5,
)


def test_a_manifest_survives_the_disk() -> None:
    assert Manifest.decode("here", MANIFEST.encode()) == MANIFEST


def test_no_flipped_bit_changes_what_a_manifest_says() -> None:
    data = MANIFEST.encode()
    for position in range(len(data) * 8):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        try:
            assert Manifest.decode("here", bytes(changed)) == MANIFEST
        except DamagedCheckpoint as error:
            assert "here" in str(error)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b'{"format": 1}', b"\xff\xfe", b"["])
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint, match="here"):
        Manifest.decode("here", data)


def test_a_format_of_the_future_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "MANIFEST.json"
    path.write_bytes(MANIFEST.encode())
    make_newer(tmp_path)
    with pytest.raises(UnknownFormat, match=r"here has format 3.*upgrade"):
        Manifest.decode("here", path.read_bytes())
    data = MANIFEST.encode().replace(b'"format": 1', b'"format": 9')
    with pytest.raises(DamagedCheckpoint, match="here is damaged"):
        Manifest.decode("here", data)


@pytest.mark.parametrize("name", ["../rank-0.distcp", "/etc/passwd", "..", ""])
def test_a_manifest_cannot_name_files_elsewhere(name: str) -> None:
    hostile = Manifest(step=1, term=1, world=1, files=(FileRecord(name, 1, 1),))
    with pytest.raises(DamagedCheckpoint):
        Manifest.decode("here", hostile.encode())


@pytest.mark.parametrize(
    "parts",
    [(Part(0, 3, 1),), (Part(0, 5, 1, 6),), (Part(0, 5, 1, -2),), (Part(0, 6, 1), Part(6, -1, 1))],
)
def test_parts_that_do_not_make_up_the_file_are_damage(parts: tuple[Part, ...]) -> None:
    hostile = Manifest(step=1, term=1, world=1, files=(FileRecord("a", 5, 1, parts),))
    with pytest.raises(DamagedCheckpoint):
        Manifest.decode("here", hostile.encode())


def test_the_newest_has_the_highest_term_then_the_highest_step() -> None:
    names = ["step-900.term-1", "step-20.term-2", "step-30.term-2", "term-3", "notes.txt", "step-5"]
    assert [one.name for one in newest_first(names)] == [
        "step-30.term-2",
        "step-20.term-2",
        "step-900.term-1",
    ]


@pytest.mark.parametrize(
    ("names", "term"),
    [
        ([], 0),
        (["term-4", "term-12"], 12),
        (["term-4", "step-10.term-9"], 9),
        (["term-x", "term-4.bak", "pruned.step-1.term-50"], 0),
    ],
)
def test_the_highest_term_is_seen_in_every_name(names: list[str], term: int) -> None:
    assert highest_term(names) == term


def test_only_older_terms_and_pruned_checkpoints_are_left_over() -> None:
    names = ["term-3", "term-4", "term-5", "pruned.step-1.term-3", "step-2.term-3"]
    assert older_terms(names, 5) == ["term-3", "term-4"]
    assert half_pruned(names) == ["pruned.step-1.term-3"]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_name_says_which_checkpoint_it_is(term: int, step: int) -> None:
    which = CheckpointId(term=term, step=step)
    assert CheckpointId.parse(which.name) == which
    assert CheckpointId.parse(which.pruned_name) is None


@pytest.mark.parametrize("name", ["step-007.term-1", "step-7.term-01", "step-٧.term-1"])
def test_a_checkpoint_has_one_name(name: str) -> None:
    assert CheckpointId.parse(name) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", "Infinity"), ("saved_at", "Infinity"), ("saved_at", "NaN"), ("saved_at", "1e300")],
)
def test_absurd_numbers_are_damage(field: str, value: str) -> None:
    body = json.loads(Manifest(step=1, term=1, world=1).encode())
    del body["crc32c"]
    body[field] = json.loads(value)
    body["crc32c"] = crc32c.crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(DamagedCheckpoint, match="not a manifest"):
        Manifest.decode("here", json.dumps(body).encode())


# Parts in columns are the same parts, in few bytes, and nothing else is taken for them


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
        *(
            PartColumns.of(parts).pack()
            for parts in (
                PARTS[:2],
                (*PARTS, Part(0, 0, 0)),
                (*PARTS[:2], Part(0, 6, 9)),  # a byte too few
                (*PARTS[:2], Part(0, 7, 9, 8)),  # data after its end
                (*PARTS[:2], Part(0, 7, 9, -2)),
            )
        ),
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


# The checksum of a whole from those of its parts


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_it_is_that_of_the_bytes(pieces: list[bytes]) -> None:
    parts = [Part(0, len(piece), crc32c.crc32c(piece)) for piece in pieces]
    assert combined_crc(parts) == crc32c.crc32c(b"".join(pieces))


def test_lengths_beyond_the_period_of_the_polynomial() -> None:
    # Zeros after something: as often as the polynomial's powers repeat, nothing changes.
    first = Part(0, 4, crc32c.crc32c(b"abcd"))
    period = (1 << 31) - 1  # of x modulo the polynomial, in bits
    nothing = Part(0, period, 0)
    assert combined_crc([first, nothing]) == combined_crc([first])
