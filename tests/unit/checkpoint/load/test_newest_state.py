"""Which state a job goes on from, and which node has what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.load.newest_state import (
    NodeSnapshot,
    ResumeCandidate,
    other_holders,
    resume_candidates,
)
from elastic_runtime.checkpoint.snapshot.buddies import Nodes, buddies, nodes_of
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory

FILES = (".metadata", "rank-0.distcp", "rank-1.distcp")


def at(step: int, term: int = 1) -> CheckpointId:
    return CheckpointId(term=term, step=step)


def offer(which: CheckpointId, *present: str, manifest_crc: int = 7) -> NodeSnapshot:
    return NodeSnapshot(which, manifest_crc, FILES, present)


def usable(found: list[ResumeCandidate]) -> list[tuple[CheckpointId, bool]]:
    return [
        (candidate.which, candidate.places is not None)
        for candidate in found
        if not candidate.problem
    ]


def test_the_newest_comes_first_and_memory_before_storage() -> None:
    nodes = [[offer(at(5), *FILES), offer(at(9), *FILES)]]
    found = resume_candidates(nodes, [at(9), at(3), at(1, term=2)])
    expected = [(at(1, 2), False), (at(9), True), (at(9), False), (at(5), True), (at(3), False)]
    assert usable(found) == expected


def test_nodes_complete_each_other() -> None:
    nodes = [[offer(at(5), FILES[0], FILES[1])], [offer(at(5), FILES[0], FILES[2])], []]
    (candidate,) = resume_candidates(nodes, [])
    assert not candidate.problem
    assert candidate.places == {MANIFEST: (0, 1), FILES[0]: (0, 1), FILES[1]: (0,), FILES[2]: (1,)}
    assert other_holders(candidate, 0) == {FILES[2]: 1}
    assert set(other_holders(candidate, 2)) == {MANIFEST, *FILES}


def test_what_nobody_has_is_named() -> None:
    (candidate, older) = resume_candidates([[offer(at(5), FILES[0], FILES[1])]], [at(2)])
    assert "rank-1.distcp" in candidate.problem
    assert older == ResumeCandidate(at(2))


def test_snapshots_with_other_manifests_do_not_complete_each_other() -> None:
    nodes = [[offer(at(5), *FILES[:2], manifest_crc=1)], [offer(at(5), *FILES[1:], manifest_crc=2)]]
    assert all(candidate.problem for candidate in resume_candidates(nodes, []))


def test_what_is_told_is_json() -> None:
    made = offer(at(5, 3), *FILES)
    assert NodeSnapshot.decode(made.encode()) == made


@given(st.lists(st.sampled_from("abcd"), max_size=12))
def test_each_node_has_one_keeper(machines: list[str]) -> None:
    kept = buddies(machines)
    if len(machines) < 2:
        assert kept == [None] * len(machines)
        return
    assert sorted(node for node in kept if node is not None) == list(range(len(machines)))
    assert all(node != buddy for node, buddy in enumerate(kept))
    most = max(machines.count(machine) for machine in machines)
    if most * 2 <= len(machines):
        pairs = [(machines[n], machines[b]) for n, b in enumerate(kept) if b is not None]
        assert all(mine != theirs for mine, theirs in pairs)


def test_the_node_before_is_the_buddy() -> None:
    assert buddies(["a", "b", "c"]) == [2, 0, 1]


def test_ranks_of_one_agent_are_one_node() -> None:
    a, b = (SnapshotMemory(f"/dev/shm/{n}", 1, "h", 1, n, n) for n in "ab")
    assert [node.ranks for node in nodes_of([a, a, b, b])] == [(0, 1), (2, 3)]
    seen = Nodes.seen_by(3, [a, a, b, b])
    assert (seen.mine, seen.leads) == (1, False)
    assert seen.buddy is not None
    assert seen.buddy.memory == a
    alone = Nodes.seen_by(0, [a])
    assert (alone.leads, alone.buddy) == (True, None)
