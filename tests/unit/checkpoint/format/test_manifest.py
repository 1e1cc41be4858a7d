"""Names, terms, and a manifest that cannot be changed unnoticed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
