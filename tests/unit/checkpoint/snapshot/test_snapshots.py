"""Snapshots: taken and gone on from, kept and served, refused and given up; who keeps copies."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.snapshot_server import SnapshotServer
from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId, Manifest
from elastic_runtime.checkpoint.save.rank_share import FileContent
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.save_interval import Every
from elastic_runtime.checkpoint.snapshot.buddies import Nodes, buddies, nodes_of
from elastic_runtime.checkpoint.snapshot.memory_budget import NodeMemory, memory_refusal
from elastic_runtime.checkpoint.snapshot.peer_reader import ConnectionPool, PeerFile, SnapshotSource
from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
from elastic_runtime.checkpoint.snapshot.snapshot_writer import SnapshotWriter
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS, SnapshotMemory, write_key
from elastic_runtime.reporting.wording import size
from elastic_runtime.topology import common_levels
from elastic_runtime.worker import context as contexts
from elastic_runtime.worker.agreement import Foreseen, Wish
from elastic_runtime.worker.peers import Peers
from tests import small_checkpoints
from tests.checkpoints import plan_of
from tests.trained import cut_off, trained
from tests.unit.checkpoint.states import state_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_runtime import State

    Topologies = list[tuple[str, ...]]


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


def make(agent: SnapshotMemory, every: int = 4) -> tuple[State, torch.nn.Module]:
    """A job with this agent, which saves beside its memory, and its model."""
    model = torch.nn.Linear(3, 3)
    return state_in(runs_of(agent), {"model": model}, snapshots=every), model


def runs_of(agent: SnapshotMemory) -> Path:
    return Path(agent.directory).with_name("runs")


def take(state: State, steps: int = 1) -> None:
    """Makes steps, and waits for what each of them begins."""
    for _ in range(steps):
        state.commit()
        saver: Any = state._saver
        saver.wait()


def take_one(state: State, agent: SnapshotMemory) -> int:
    """Makes steps until there is another snapshot; gives its step."""
    before = kept(agent)
    for _ in range(20):
        take(state)
        if kept(agent) != before:
            return state.step
    pytest.fail(f"no snapshot was taken until step {state.step}")


def scheduler(agent: SnapshotMemory, every: Every) -> SnapshotScheduler:
    storage, context = LocalStorage(runs_of(agent)), contexts.context()
    return SnapshotScheduler(storage, SaveTerm(storage, context), every, context)


def kept(agent: SnapshotMemory) -> list[str]:
    return sorted(path.name for path in Path(agent.directory).glob("*/step-*"))


def test_the_newest_is_kept_and_is_where_a_job_goes_on(
    agent: SnapshotMemory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state, model = make(agent)
    with cut_off(state):
        assert [take_one(state, agent), step := take_one(state, agent)] == [4, 8]
        take(state)
        assert kept(agent) == [f"step-{step}.term-1"]
        assert state._saver is not None and state._saver.saved_step == 0  # nothing is stored
    other, its = make(agent)
    with trained(other):
        assert other.step == step
        assert torch.equal(its.weight, model.weight)
        assert "'source': 'memory'" in caplog.text
    assert (runs_of(agent) / f"step-{step}.term-2").is_dir()


def test_a_newer_checkpoint_wins_and_ends_the_snapshot(agent: SnapshotMemory) -> None:
    state, _ = make(agent)
    with trained(state):
        step = take_one(state, agent)
        take(state)
    assert kept(agent) == [f"step-{step}.term-1"]
    state, _ = make(agent)
    with cut_off(state):
        assert state.step == step + 1
    assert not kept(agent)


def test_a_place_that_forgot_its_terms_comes_after_what_is_in_memory(agent: SnapshotMemory) -> None:
    step = 0
    for term in (1, 2, 3):
        state, _ = make(agent)
        with cut_off(state):
            assert state.step == step
            step = take_one(state, agent)
        assert kept(agent) == [f"step-{step}.term-{term}"]
        if term == 2:
            (runs_of(agent) / "term-2").unlink()


def test_a_snapshot_is_left_out_while_anything_is_under_way(agent: SnapshotMemory) -> None:
    state, _ = make(agent, every=100)
    with cut_off(state):
        take(state, 3)
        saver: Any = state._saver
        saver.act_on(Wish.SNAPSHOT | Wish.BUSY)
        state.save()  # begins at the step at which the snapshot is agreed on
        saver.act_on(Wish.SNAPSHOT)
        saver.wait()
        assert not kept(agent)
        saver.act_on(Wish.SNAPSHOT)
        saver.wait()
        assert kept(agent) == ["step-3.term-1"]


def test_a_failure_costs_an_event_and_nothing_else(
    agent: SnapshotMemory, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    state, _ = make(agent)
    with cut_off(state):
        step = take_one(state, agent)
        with monkeypatch.context() as patch:
            patch.setattr("elastic_runtime.checkpoint.storage.local_storage.LocalWriter.sync", full)
            take(state, 8)
        assert "snapshot.failed" in caplog.text
        assert kept(agent) == [f"step-{step}.term-1"]
        step = take_one(state, agent)
        assert kept(agent) == [f"step-{step}.term-1"]


def test_an_incomplete_one_is_told_and_passed_over(
    agent: SnapshotMemory, caplog: pytest.LogCaptureFixture
) -> None:
    state, _ = make(agent)
    with cut_off(state):
        take(state)
        state.save(sync=True)
        step = take_one(state, agent)
    (file,) = Path(agent.directory).glob(f"*/step-{step}.term-1/rank-0.distcp")
    file.unlink()
    again, _ = make(agent)
    with cut_off(again):
        assert again.step == 1
    assert "snapshot.incomplete" in caplog.text
    assert "rank-0.distcp" in caplog.text


def test_without_an_agent_they_are_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = state_in(tmp_path, snapshots=1)
    with cut_off(state):
        take(state, 3)
    assert caplog.text.count("snapshot.off") == 1


class _Beside(Peers):
    """There is another rank, whose agent has this memory for snapshots."""

    def __init__(self, memory: str) -> None:
        super().__init__()
        self.memory = memory
        self.asked = 0

    def gather(self, value: Any) -> list[Any]:
        self.asked += 1
        return [value, self.memory if isinstance(value, str) else value]


def test_a_rank_without_memory_is_asked_for_again_in_the_next_world(agent: SnapshotMemory) -> None:
    """A newcomer knows nothing of it and asks; whoever did not ask with it would never be heard."""
    snapshots, peers = scheduler(agent, Every(steps=1)), _Beside("")
    for _ in range(2):
        assert snapshots.resume_candidates(peers, [], None) == []
    assert (peers.asked, snapshots.wanted) == (1, False), "once in a world"
    snapshots.enter()
    assert snapshots.wanted
    peers.memory = agent.encode()
    snapshots.resume_candidates(peers, [], None)
    assert peers.asked > 2


def test_the_ranks_hear_in_time_when_a_snapshot_is_due(agent: SnapshotMemory) -> None:
    snapshots = scheduler(agent, Every(steps=10))
    assert [snapshots.foreseen(step).steps for step in (3, 9, 10, 12)] == [7, 1, 0, 0]
    assert snapshots.wish(12) == Wish.SNAPSHOT
    assert snapshots.foreseen(12).steps == 8, "one is taken about now"
    snapshots.rest(13)
    assert snapshots.foreseen(13) == Foreseen(steps=7)
    assert scheduler(agent, Every()).foreseen(3) == Foreseen()
    assert 50.0 < scheduler(agent, Every(seconds=60.0)).foreseen(3).seconds <= 60.0


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


# Which node keeps a copy for which: one on another machine wherever there is one


def memory(node: str, machine: str) -> SnapshotMemory:
    return SnapshotMemory("/dev/shm/x", 1, "127.0.0.1", 1, node, machine)


def keepers(machines: Sequence[str], topologies: Topologies) -> None:
    """Each node has one on another machine."""
    found = buddies(list(machines), topologies)
    assert sorted(one for one in found if one is not None) == list(range(len(machines)))
    for node, buddy in enumerate(found):
        assert buddy is not None
        assert machines[buddy] != machines[node]


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=12))
def test_each_node_has_one_keeper_on_another_machine(machines: list[str]) -> None:
    """Unless most of them are on one."""
    if max(map(machines.count, machines)) * 2 <= len(machines):
        keepers(machines, [])
    found = buddies(machines)
    assert sorted(one for one in found if one is not None) == list(range(len(machines)))
    assert all(node != buddy for node, buddy in enumerate(found))


def test_a_node_alone_has_no_buddy() -> None:
    assert (buddies([]), buddies(["a"])) == ([], [None])


def test_ranks_belong_to_the_node_whose_memory_they_have() -> None:
    one, other = memory("n0", "a"), memory("n1", "b")
    memories = [one, other, one, other]
    assert [node.ranks for node in nodes_of(memories)] == [(0, 2), (1, 3)]
    seen = Nodes.seen_by(3, memories)
    assert (seen.mine, seen.leads) == (1, False)
    assert seen.buddy == seen.all[0]
    assert Nodes.seen_by(1, memories).leads
    assert Nodes.seen_by(0, [one]).buddy is None


# With topologies

_LEVELS = st.lists(st.sampled_from("ab"), max_size=3).map(tuple)


def _shared(found: Sequence[int | None], topologies: Topologies) -> tuple[int, ...]:
    """How many pairs share at least one level, two levels, …"""
    common = [
        common_levels(topologies[node], topologies[buddy])
        for node, buddy in enumerate(found)
        if buddy is not None
    ]
    return tuple(sum(levels >= depth for levels in common) for depth in (1, 2, 3))


@given(st.lists(_LEVELS, max_size=6), st.data())
def test_no_more_pairs_than_have_to_be_share_their_first_level(
    topologies: Topologies, data: st.DataObject
) -> None:
    count = len(topologies)
    machines = [data.draw(st.sampled_from("mn")) if one else "" for one in topologies]
    found = buddies(machines, topologies)
    if count < 2:
        assert found == [None] * count
        return
    assert sorted(one for one in found if one is not None) == list(range(count))
    assert all(node != buddy for node, buddy in enumerate(found))
    others = (one for one in permutations(range(count)) if all(a != b for a, b in enumerate(one)))
    first = common_levels(min(topologies), max(topologies))  # the first that tells nodes apart
    topologies = [levels[first:] for levels in topologies]
    assert _shared(found, topologies)[0] == min(_shared(one, topologies)[0] for one in others)


@given(st.lists(st.sampled_from("abc"), max_size=9), _LEVELS)
def test_where_all_are_in_one_place_machines_decide_as_ever(
    machines: list[str], levels: tuple[str, ...]
) -> None:
    assert buddies(machines, [levels for _ in machines]) == buddies(machines)


@pytest.mark.parametrize(("machines", "found"), [("ab", [1, 0]), ("abcd", [3, 0, 1, 2])])
def test_without_topologies_the_node_before_is_copied(machines: str, found: list[int]) -> None:
    assert buddies(list(machines)) == found
    assert buddies("aabbc") == [3, 4, 0, 1, 2]


def test_neighbours_are_no_buddies() -> None:
    """Ranks are in the order of the network, so the node beside is the first to fail with one."""
    topologies = [(zone, rack) for zone in "yz" for rack in "12" for _ in range(2)]
    found = buddies(list("abcdefgh"), topologies)
    assert found == [4, 5, 6, 7, 0, 1, 2, 3]
    # Most nodes are in one zone: those that must stay there are in different racks.
    topologies = [("y", rack) for rack in "111222"] + [("z", "3"), ("z", "4")]
    assert _shared(buddies(list("abcdefgh"), topologies), topologies) == (4, 0, 0)


def test_where_one_node_does_not_know_topologies_all_choose_alike() -> None:
    topologies = [("y",), ("y",), ("z",), ("z",)]
    assert buddies("abcd", topologies) == [2, 3, 0, 1]
    assert buddies("abcd", [*topologies[:3], None]) == buddies("abcd")
    # Nothing known is something else.
    assert buddies("abcd", [("y",), ("y",), (), ()]) == [2, 3, 0, 1]


def test_a_world_of_thousands_is_paired_at_once() -> None:
    """Each rank does it in each world."""
    count = 10_000
    topologies = [("z" + str(node % 2 * node % 3), str(node // 50)) for node in range(count)]
    found = buddies([str(node) for node in range(count)], topologies)
    assert sorted(one for one in found if one is not None) == list(range(count))


def test_a_rank_finds_its_buddy_by_what_all_agents_say() -> None:
    memories = [replace(memory(f"n{n}", f"m{n}"), topology=(at,)) for n, at in enumerate("yyzz")]
    seen = [Nodes.seen_by(rank, memories).buddy for rank in range(4)]
    assert [one.memory.node for one in seen if one] == ["n2", "n3", "n0", "n1"]


@pytest.mark.parametrize(
    ("machines", "topologies"),
    [
        ("mmnn", ["a", "", "a", ""]),  # some do not say where their machine is
        # Who is kept by its own machine trades with others.
        ("abbcc", ["r", "s", "s", "s", "s"]),
        ("abcac", ["rs", "qr", "rr", "rs", "rr"]),
    ],
)
def test_topologies_leave_nobody_with_its_own_machine(
    machines: str, topologies: Sequence[str]
) -> None:
    keepers(machines, [tuple(levels) for levels in topologies])
