"""This node's directory of snapshots: what it offers, and what is removed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
from tests import small_checkpoints
from tests.unit.checkpoint.snapshot.memories import memory_of

if TYPE_CHECKING:
    from pathlib import Path

WHICH = CheckpointId(term=1, step=3)


def test_what_a_node_offers(tmp_path: Path) -> None:
    store = SnapshotStore(memory_of(tmp_path), "runs")
    assert store.offers() == []
    store.storage.prepare()
    for step in (3, 5, 7):
        small_checkpoints.put(store.storage, step)
    path = store.storage.path
    (path / "step-5.term-1" / small_checkpoints.FILE).write_bytes(b"short")
    (path / "step-7.term-1" / MANIFEST).unlink()
    offers = store.offers()
    assert [(offer.which.step, len(offer.present)) for offer in offers] == [(5, 0), (3, 1)]
    before = store.used()
    store.tidy()
    assert len(list(path.iterdir())) == 2
    assert 0 < store.used() < before
    store.keep_only(WHICH)
    assert [one.name for one in path.iterdir()] == [WHICH.name]


def test_places_do_not_share_a_directory(tmp_path: Path) -> None:
    memory = memory_of(tmp_path)
    assert (
        SnapshotStore(memory, "a").key
        == SnapshotStore(memory, "a").key
        != SnapshotStore(memory, "b").key
    )
