"""The checkpoints of a storage: listed, inspected, verified and deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.storage.catalog import (
    CheckpointStatus,
    decide_kept,
    free_space,
    inspect_checkpoint,
    list_checkpoints,
    prune,
    remove_unfinished,
    verify,
)
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.retention import Retention
from tests.hostile import make_newer
from tests.small_checkpoints import FILE, put, write

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.checkpoint.storage.storage_contract import Storage


@pytest.mark.parametrize("bad", [b"state of 1", b"state of 100", b"state 0f 10", b""])
def test_verify_finds_every_damage(tmp_path: Path, bad: bytes) -> None:
    storage = LocalStorage(tmp_path)
    manifest = put(storage, 10)
    assert verify(storage, manifest) == []
    assert inspect_checkpoint(storage, manifest.id).status is CheckpointStatus.WHOLE
    path = tmp_path / manifest.id.name / FILE
    path.write_bytes(bad)
    same_size = len(bad) == manifest.files[0].bytes
    assert inspect_checkpoint(storage, manifest.id).status is (
        CheckpointStatus.WHOLE if same_size else CheckpointStatus.DAMAGED
    )
    if len(bad) <= manifest.files[0].bytes:
        (problem,) = verify(storage, manifest)
        assert str(path) in problem
        if same_size:
            assert "bytes 6 to 11" in problem


def test_verify_does_not_rely_on_the_parts_alone(storage: Storage) -> None:
    manifest = put(storage, 10)
    (file,) = manifest.files
    other = replace(manifest, files=(replace(file, crc32c=file.crc32c ^ 1),))
    (problem,) = verify(storage, other)
    assert "its checksum does not match" in problem


def test_what_only_has_the_name_of_a_checkpoint_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "step-9.term-1").write_text("precious")
    (tmp_path / "step-8.term-1").symlink_to("/nowhere")
    storage = LocalStorage(tmp_path)
    for step in (1, 2):
        put(storage, step=step, term=2)
    prune(storage, Retention(1), 2)
    assert [p.name for p in tmp_path.glob("step-*.term-2")] == ["step-2.term-2"]
    assert (tmp_path / "step-9.term-1").read_text() == "precious"


def test_the_newest_comes_first_and_each_says_how_it_is(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    newer, short, aside = (put(storage, step) for step in (4, 3, 2))
    storage.create(CheckpointId(1, 5))
    make_newer(tmp_path / newer.id.name)
    (tmp_path / short.id.name / FILE).unlink()
    storage.set_aside(aside.id, {"why": "a test"})
    put(storage, 1)
    found = list_checkpoints(storage)
    assert [(one.which.step, one.status) for one in found] == [
        (5, CheckpointStatus.UNFINISHED),
        (4, CheckpointStatus.NEWER),
        (3, CheckpointStatus.DAMAGED),
        (2, CheckpointStatus.ASIDE),
        (1, CheckpointStatus.WHOLE),
    ]
    assert found[2].problem == f"{tmp_path / short.id.name / FILE} is missing"
    assert found[-1].problem == ""


def test_what_holds_a_foreign_file_stays_whatever_the_rule_says(storage: Storage) -> None:
    for step in (1, 2, 3):
        put(storage, step)
    write(storage, CheckpointId(1, 1), "notes.txt", b"a person's")
    decisions = decide_kept(Retention(1), list_checkpoints(storage))
    assert {one.which.step: one.keep for one in decisions} == {3: True, 2: False, 1: True}
    (kept,) = [one for one in decisions if one.which.step == 1]
    assert kept.why == "contains files that are not ours (notes.txt)"


def test_what_is_known_to_be_damaged_does_not_count(storage: Storage) -> None:
    """Its sizes are right: counted, it would be kept in place of one that can be loaded."""
    for step in (1, 2, 3):
        put(storage, step)
    prune(storage, Retention(1), term=1, damaged={CheckpointId(1, 3)})
    assert [one.which.step for one in list_checkpoints(storage)] == [3, 2]


def test_only_saves_of_older_terms_without_foreign_files_are_cleared(storage: Storage) -> None:
    put(storage, 1)
    for which in (CheckpointId(1, 2), CheckpointId(1, 3), CheckpointId(2, 4)):
        storage.create(which)
        write(storage, which, FILE, b"half")
    write(storage, CheckpointId(1, 3), "notes.txt", b"a person's")
    assert remove_unfinished(storage, term=1) == []  # term 2 is another's, and newer
    assert remove_unfinished(storage, term=2) == [CheckpointId(1, 2)]
    left = [one.which for one in list_checkpoints(storage)]
    assert left == [CheckpointId(2, 4), CheckpointId(1, 3), CheckpointId(1, 1)]


def test_space_is_made_of_starts_that_never_saved_but_for_the_last_one(storage: Storage) -> None:
    put(storage, 1, term=1)
    for term in (2, 3, 4):
        storage.create(CheckpointId(term, 2))
        write(storage, CheckpointId(term, 2), FILE, b"half")
    gone = free_space(storage, term=5)
    assert gone == [CheckpointId(3, 2), CheckpointId(2, 2)]
    left = [one.which for one in list_checkpoints(storage)]
    assert left == [CheckpointId(4, 2), CheckpointId(1, 1)]
