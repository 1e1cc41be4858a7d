"""Snapshots: taken and gone on from, kept and served, refused and given up."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.agent.snapshot_server import SnapshotServer
from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId, Manifest
from elastic_runtime.checkpoint.save.rank_share import FileContent
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.save_interval import Every
from elastic_runtime.checkpoint.snapshot.buddies import Nodes
from elastic_runtime.checkpoint.snapshot.memory_budget import NodeMemory, memory_refusal
from elastic_runtime.checkpoint.snapshot.peer_reader import ConnectionPool, PeerFile, SnapshotSource
from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
from elastic_runtime.checkpoint.snapshot.snapshot_writer import SnapshotWriter
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS, SnapshotMemory, write_key
from elastic_runtime.reporting.wording import size
from elastic_runtime.worker import context as contexts
from elastic_runtime.worker.agreement import Foreseen, Wish
from elastic_runtime.worker.peers import Peers
from tests import small_checkpoints
from tests.checkpoints import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def memory_of(path: Path, port: int = 1) -> SnapshotMemory:
    """That of node n0, whose server has this port on the loopback; nobody listens on port 1."""
    return SnapshotMemory(str(path), 1 << 30, "127.0.0.1", port, "n0", "m0")


# Snapshots of one process: taken, gone on from, refused, given up


WHICH = CheckpointId(term=1, step=3)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotMemory:
    """A worker's environment, as far as snapshots are concerned."""
    path = tmp_path / "memory"
    path.mkdir()
    memory = memory_of(path)
    here = contexts.WorkerContext({ENV_SNAPSHOTS: memory.encode()})
    monkeypatch.setattr(contexts, "_context", here)
    return memory


def make(tmp_path: Path, **settings: Any) -> tuple[Checkpointer, torch.nn.Module]:
    model = torch.nn.Linear(3, 3)
    return Checkpointer(tmp_path / "runs", {"model": model}, **settings), model


def take(ckpt: Checkpointer, steps: int = 1) -> None:
    for _ in range(steps):
        ckpt.step()
        ckpt.wait()


def scheduler(tmp_path: Path, every: Every) -> SnapshotScheduler:
    storage, context = LocalStorage(tmp_path), contexts.context()
    return SnapshotScheduler(storage, SaveTerm(storage, context), every, context)


def kept(agent: SnapshotMemory) -> list[str]:
    return sorted(path.name for path in Path(agent.directory).glob("*/step-*"))


def test_the_newest_is_kept_and_is_where_a_job_goes_on(
    agent: SnapshotMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ckpt, model = make(tmp_path, snapshot_every=4)
    take(ckpt, 9)
    assert kept(agent) == ["step-8.term-1"]
    assert ckpt.saved_step == 0  # nothing is stored
    other, its = make(tmp_path, snapshot_every=4)
    assert other.resume() == 8
    assert torch.equal(its.weight, model.weight)
    assert "'source': 'memory'" in caplog.text
    other.save(sync=True)
    assert (tmp_path / "runs" / "step-8.term-2").is_dir()
    ckpt.close()
    other.close()


def test_a_newer_checkpoint_wins_and_ends_the_snapshot(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    take(ckpt, 5)
    ckpt.save(sync=True)
    assert kept(agent) == ["step-4.term-1"]
    assert make(tmp_path, snapshot_every=4)[0].resume() == 5
    assert not kept(agent)
    ckpt.close()


def test_a_place_that_forgot_its_terms_comes_after_what_is_in_memory(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    for step in (4, 8):
        ckpt, _ = make(tmp_path, snapshot_every=4)
        assert ckpt.resume() == step - 4
        take(ckpt, 4)
        ckpt.close()
    assert kept(agent) == ["step-8.term-2"]
    (tmp_path / "runs" / "term-2").unlink()
    ckpt, _ = make(tmp_path, snapshot_every=4)
    assert ckpt.resume() == 8
    take(ckpt, 4)
    assert kept(agent) == ["step-12.term-3"]
    ckpt.close()


def test_a_snapshot_is_left_out_while_anything_is_under_way(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    take(ckpt, 3)
    ckpt.steps += 1
    ckpt._snapshot(Wish.SNAPSHOT | Wish.BUSY)
    ckpt.save()  # begins at the step at which the snapshot is agreed on
    ckpt._snapshot(Wish.SNAPSHOT)
    ckpt.wait()
    assert not kept(agent)
    ckpt.close()


def test_a_failure_costs_an_event_and_nothing_else(
    agent: SnapshotMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    take(ckpt, 4)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("elastic_runtime.checkpoint.storage.local_storage.LocalWriter.sync", full)
        take(ckpt, 4)
    assert "snapshot.failed" in caplog.text
    assert kept(agent) == ["step-4.term-1"]
    take(ckpt, 4)
    assert kept(agent) == ["step-12.term-1"]
    ckpt.close()


def test_an_incomplete_one_is_told_and_passed_over(
    agent: SnapshotMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    ckpt.steps = 1
    ckpt.save(sync=True)
    take(ckpt, 3)
    (file,) = Path(agent.directory).glob("*/step-4.term-1/rank-0.distcp")
    file.unlink()
    assert make(tmp_path, snapshot_every=4)[0].resume() == 1
    assert "snapshot.incomplete" in caplog.text
    assert "rank-0.distcp" in caplog.text
    ckpt.close()


def test_without_an_agent_they_are_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ckpt, _ = make(tmp_path, snapshot_every=1)
    take(ckpt, 3)
    assert caplog.text.count("snapshot.off") == 1
    ckpt.close()


class _Beside(Peers):
    """There is another rank, whose agent has this memory for snapshots."""

    def __init__(self, memory: str) -> None:
        super().__init__()
        self.memory = memory
        self.asked = 0

    def gather(self, value: Any) -> list[Any]:
        self.asked += 1
        return [value, self.memory if isinstance(value, str) else value]


def test_a_rank_without_memory_is_asked_for_again_in_the_next_world(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    """A newcomer knows nothing of it and asks; whoever did not ask with it would never be heard."""
    snapshots, peers = scheduler(tmp_path, Every(steps=1)), _Beside("")
    for _ in range(2):
        assert snapshots.resume_candidates(peers, [], None) == []
    assert (peers.asked, snapshots.wanted) == (1, False), "once in a world"
    snapshots.enter()
    assert snapshots.wanted
    peers.memory = agent.encode()
    snapshots.resume_candidates(peers, [], None)
    assert peers.asked > 2


def test_the_ranks_hear_in_time_when_a_snapshot_is_due(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    snapshots = scheduler(tmp_path, Every(steps=10))
    assert [snapshots.foreseen(step).steps for step in (3, 9, 10, 12)] == [7, 1, 0, 0]
    assert snapshots.wish(12) == Wish.SNAPSHOT
    assert snapshots.foreseen(12).steps == 8, "one is taken about now"
    snapshots.rest(13)
    assert snapshots.foreseen(13) == Foreseen(steps=7)
    assert scheduler(tmp_path, Every()).foreseen(3) == Foreseen()
    assert 50.0 < scheduler(tmp_path, Every(seconds=60.0)).foreseen(3).seconds <= 60.0


# This node's directory of snapshots: what it offers, and what is removed from it


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
    one, same, other = (SnapshotStore(memory_of(tmp_path), where).key for where in ("a", "a", "b"))
    assert one == same != other


# One snapshot is written by all ranks, or given up by all


class _Dying(Peers):
    """Another rank dies at one of the exchanges, after all have done their part."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def gather(self, value: Any) -> list[Any]:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("Connection closed by peer")
        return super().gather(value)


@pytest.mark.parametrize(("exchange", "stays"), [(5, False), (6, True)])
def test_what_others_may_have_by_now_is_kept(tmp_path: Path, exchange: int, stays: bool) -> None:
    memory = memory_of(tmp_path / "memory")
    Path(memory.directory).mkdir()
    store = SnapshotStore(memory, "runs")
    store.storage.prepare()
    small_checkpoints.put(store.storage, 1)
    here = contexts.WorkerContext({})
    writer = SnapshotWriter(
        store=store,
        nodes=Nodes.seen_by(0, [memory]),
        save_term=SaveTerm(LocalStorage(tmp_path / "runs"), here),
        draft=Manifest(step=5, term=0, world=1),
        plan=plan_of([[]]),
        description=Description(),
        advance=lambda count: None,
    )
    # term, create, write, copy, describe, commit
    with pytest.raises(RuntimeError, match="closed by peer"):
        writer.run(_Dying(exchange), FileContent(0, lambda: iter(())))
    names = {path.name for path in store.storage.path.iterdir()}
    assert names == ({"step-1.term-1", "step-5.term-1"} if stays else {"step-1.term-1"})


# Snapshots in the memory of other nodes: read from a real server, gone, or out of reach


KEY = "5ec4e7"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SnapshotStore]:
    """What another node has, and its server."""
    path = tmp_path / "theirs"
    path.mkdir()
    write_key(str(tmp_path), KEY)
    server = SnapshotServer(str(path), lambda: KEY, "127.0.0.1")
    store = SnapshotStore(memory_of(path, server.port), "runs")
    store.create(WHICH)
    store.storage.discard(WHICH)
    small_checkpoints.put(store.storage, 3)
    yield store
    server.close()


@pytest.fixture
def snapshot(served: SnapshotStore, tmp_path: Path) -> Iterator[SnapshotSource]:
    """It, as this node reads it."""
    others = dict.fromkeys((MANIFEST, small_checkpoints.FILE), served.memory)
    source = SnapshotSource(LocalStorage(tmp_path / "own"), served.key, others, "n0", str(tmp_path))
    yield source
    source.close()


def test_a_snapshot_of_another_node(snapshot: SnapshotSource) -> None:
    assert snapshot.has_manifest(WHICH)
    manifest = snapshot.read_manifest(WHICH)
    assert manifest is not None
    assert snapshot.sizes(WHICH) == {file.name: file.bytes for file in manifest.files}
    buffer = bytearray(4)
    with snapshot.reader(WHICH, small_checkpoints.FILE) as reader:
        reader.readinto(6, [memoryview(buffer)])
    assert buffer == b"of 3"
    assert snapshot.fetched > len(buffer)


def test_a_snapshot_that_has_gone(snapshot: SnapshotSource, served: SnapshotStore) -> None:
    served.keep_only(None)
    assert not snapshot.has_manifest(WHICH)
    with pytest.raises(DamagedCheckpoint, match="missing"):
        snapshot.read_manifest(WHICH)
    with (
        snapshot.reader(WHICH, small_checkpoints.FILE) as reader,
        pytest.raises(DamagedCheckpoint, match=r"of n0 is damaged: it is missing or too short"),
    ):
        reader.readinto(0, [memoryview(bytearray(4))])


def test_a_node_that_cannot_be_reached(tmp_path: Path) -> None:
    write_key(str(tmp_path), KEY)
    file = PeerFile(ConnectionPool(memory_of(tmp_path), str(tmp_path)), "x", "x")
    with pytest.raises(DamagedCheckpoint, match=r"of n0 cannot be reached .* port 1: .*refused"):
        file.readinto(0, [memoryview(bytearray(4))])


# No snapshot is taken that does not fit, and it is said why


MIB = 1 << 20
NODE = NodeMemory(
    node="n0",
    machine="m0",
    needed=100 * MIB,
    beside=50 * MIB,
    kept=100 * MIB,
    limit=200 * MIB,
    free=1000 * MIB,
    available=1000 * MIB,
    total=2000 * MIB,
)


def kind(*nodes: NodeMemory) -> str:
    found = memory_refusal(nodes)
    return found.kind if found else ""


def test_it_fits() -> None:
    assert not kind(NODE)
    assert not kind(replace(NODE, available=250 * MIB))
    assert not kind(*[replace(NODE, machine=f"m{n}") for n in range(50)])


def test_nodes_of_one_machine_share_its_memory() -> None:
    assert not kind(*[replace(NODE, node=f"n{n}") for n in range(6)])
    # 7 x (100 + 50) MiB is more than what is available, 11 x 100 MiB more than is free.
    assert kind(*[replace(NODE, node=f"n{n}") for n in range(7)]) == "memory"
    assert kind(*[replace(NODE, node=f"n{n}") for n in range(11)]) == "tmpfs"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kept": 101 * MIB}, "limit: .*--snapshot-memory is 200 MiB; give it 201 MiB"),
        ({"free": 64 * MIB}, "tmpfs: .*/dev/shm has 64 MiB left.*--shm-size"),
        # A part of the memory is left to others.
        ({"available": 249 * MIB}, "memory: "),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, int], told: str) -> None:
    """The one before is kept, and counts."""
    found = memory_refusal([replace(NODE, **changes)])
    assert found is not None
    assert re.match(told, f"{found.kind}: {found.text}", re.DOTALL)


def test_sizes_for_people() -> None:
    sizes = [0, 1023, 1536, 999 * MIB, 1000 * MIB, 5 << 40]
    expected = ["0 bytes", "1023 bytes", "1.5 KiB", "999 MiB", "0.977 GiB", "5 TiB"]
    assert [size(count) for count in sizes] == expected


def test_what_is_told_is_json() -> None:
    assert NodeMemory(*NODE.encode()) == NODE
