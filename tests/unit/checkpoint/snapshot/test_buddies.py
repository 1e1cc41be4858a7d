"""Which node keeps a copy for which: one on another machine wherever there is one."""

from __future__ import annotations

import pytest

from elastic_runtime.checkpoint.snapshot.buddies import Nodes, buddies, nodes_of
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory


def memory(node: str, machine: str) -> SnapshotMemory:
    return SnapshotMemory("/dev/shm/x", 1, "127.0.0.1", 1, node, machine)


@pytest.mark.parametrize(
    "machines", ["ab", "abc", "aabb", "abab", "aabbc", "aaabbb", "abcabcabc", "aabc"]
)
def test_each_node_has_one_keeper_on_another_machine(machines: str) -> None:
    found = buddies(list(machines))
    assert sorted(one for one in found if one is not None) == list(range(len(machines)))
    for node, buddy in enumerate(found):
        assert buddy is not None
        assert machines[buddy] != machines[node]


def test_nodes_of_one_machine_still_keep_copies_for_each_other() -> None:
    found = buddies(["a", "a", "a"])
    assert sorted(one for one in found if one is not None) == [0, 1, 2]
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
