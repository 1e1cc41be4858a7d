"""Snapshots in the memory of other nodes: read from a real server, gone, or out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.snapshot_server import SnapshotServer
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.snapshot.peer_reader import ConnectionPool, PeerFile, SnapshotSource
from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory, write_key
from tests import small_checkpoints
from tests.unit.checkpoint.snapshot.memories import memory_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHICH = CheckpointId(term=1, step=3)
KEY = "5ec4e7"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[SnapshotStore, SnapshotMemory]]:
    """What another node has, and its server."""
    path = tmp_path / "theirs"
    path.mkdir()
    write_key(str(tmp_path), KEY)
    server = SnapshotServer(str(path), lambda: KEY, "127.0.0.1")
    store = SnapshotStore(memory_of(path, server.port), "runs")
    store.create(WHICH)
    store.storage.discard(WHICH)
    small_checkpoints.put(store.storage, 3)
    yield store, store.memory
    server.close()


def open_from(store: SnapshotStore, memory: SnapshotMemory, own: Path) -> SnapshotSource:
    others = {MANIFEST: memory, small_checkpoints.FILE: memory}
    return SnapshotSource(LocalStorage(own), store.key, others, "n0", str(own.parent))


def test_a_snapshot_of_another_node(
    served: tuple[SnapshotStore, SnapshotMemory], tmp_path: Path
) -> None:
    store, memory = served
    snapshot = open_from(store, memory, tmp_path / "own")
    assert snapshot.has_manifest(WHICH)
    manifest = snapshot.read_manifest(WHICH)
    assert manifest is not None
    assert snapshot.sizes(WHICH) == {file.name: file.bytes for file in manifest.files}
    buffer = bytearray(4)
    with snapshot.reader(WHICH, small_checkpoints.FILE) as reader:
        reader.readinto(6, [memoryview(buffer)])
    assert buffer == b"of 3"
    assert snapshot.fetched > len(buffer)
    snapshot.close()


def test_a_snapshot_that_has_gone(
    served: tuple[SnapshotStore, SnapshotMemory], tmp_path: Path
) -> None:
    store, memory = served
    snapshot = open_from(store, memory, tmp_path / "own")
    store.keep_only(None)
    assert not snapshot.has_manifest(WHICH)
    with pytest.raises(DamagedCheckpoint, match="missing"):
        snapshot.read_manifest(WHICH)
    with (
        snapshot.reader(WHICH, small_checkpoints.FILE) as reader,
        pytest.raises(DamagedCheckpoint, match=r"of n0 is damaged: it is missing or too short"),
    ):
        reader.readinto(0, [memoryview(bytearray(4))])
    snapshot.close()


def test_a_node_that_cannot_be_reached(tmp_path: Path) -> None:
    write_key(str(tmp_path), KEY)
    file = PeerFile(ConnectionPool(memory_of(tmp_path), str(tmp_path)), "x", "x")
    with pytest.raises(DamagedCheckpoint, match=r"of n0 cannot be reached .* port 1: .*refused"):
        file.readinto(0, [memoryview(bytearray(4))])
