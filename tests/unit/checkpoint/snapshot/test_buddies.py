"""Which node keeps a copy for which: one on another machine wherever there is one."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.snapshot.buddies import Nodes, buddies, nodes_of
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory
from elastic_runtime.topology import common_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    Topologies = list[tuple[str, ...]]


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
