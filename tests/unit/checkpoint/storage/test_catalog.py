"""The checkpoints of a storage: listed, inspected, verified and deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.storage.catalog import (
    CheckpointStatus,
    inspect_checkpoint,
    prune,
    verify,
)
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.retention import Retention
from tests.small_checkpoints import FILE, put

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
