"""Which ranks share the memory of one agent, and which node keeps a copy for which. All pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from elastic_runtime.topology import common_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.protocol.snapshot_requests import SnapshotMemory


@dataclass(frozen=True, slots=True)
class Node:
    """An agent and its workers.

    Attributes:
        memory: for snapshots.
        ranks: of its workers; the first one acts for the node.
    """

    memory: SnapshotMemory
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of a world, as one rank sees them.

    Attributes:
        all: in the order of their first ranks.
        mine: which one this rank is on.
        leads: this rank acts for its node.
        buddy: the node of whose files this one keeps a copy, if there is another one.
    """

    all: tuple[Node, ...]
    mine: int
    leads: bool
    buddy: Node | None

    @classmethod
    def seen_by(cls, rank: int, memories: Sequence[SnapshotMemory]) -> Self:
        """Finds a rank's place.

        Args:
            rank: the rank.
            memories: what each rank's agent has, by rank.
        """
        nodes = nodes_of(memories)
        mine = next(number for number, node in enumerate(nodes) if rank in node.ranks)
        machines = [node.memory.machine for node in nodes]
        buddy = buddies(machines, [node.memory.topology for node in nodes])[mine]
        found = None if buddy is None else nodes[buddy]
        return cls(nodes, mine, rank == nodes[mine].ranks[0], found)


def nodes_of(memories: Sequence[SnapshotMemory]) -> tuple[Node, ...]:
    """The nodes of a world, in the order of their first ranks.

    Args:
        memories: what each rank's agent has, by rank.
    """
    ranks: dict[SnapshotMemory, list[int]] = {}
    for rank, memory in enumerate(memories):
        ranks.setdefault(memory, []).append(rank)
    return tuple(Node(memory, tuple(its)) for memory, its in ranks.items())


def buddies(
    machines: Sequence[str], topologies: Sequence[tuple[str, ...] | None] = ()
) -> list[int | None]:
    """Whose files each node keeps a copy of: one that fails with it as rarely as can be.

    Every node has one such keeper. Of the first level at which nodes differ, no more pairs share
    one than have to, because most of the nodes are there; those pairs are chosen by the next
    levels likewise. Nodes of one machine are at one place, whether or not each of them says so, and
    the keeper is on another machine wherever that brings no pair nearer to each other.

    Args:
        machines: of each node.
        topologies: of each node, in levels from far to near. Where one node does not say any, as
            it is of a version that knows none, all choose as that version does.

    Returns:
        A node for each node; None for a node that has no other.
    """
    count = len(machines)
    if count < 2:
        return [None] * count
    known = [levels for levels in topologies if levels is not None]
    if len(known) < count:
        known = [()] * count
    said = {machine: levels for machine, levels in zip(machines, known, strict=True) if levels}
    known = [levels or said.get(machines[node], ()) for node, levels in enumerate(known)]
    kept = {keeper: node for node, keeper in _far_pairs(list(range(count)), known, machines)}
    _part(kept, known, machines)
    return [kept[keeper] for keeper in range(count)]


def _part(
    kept: dict[int, int], topologies: Sequence[tuple[str, ...]], machines: Sequence[str]
) -> None:
    """Lets keepers on the machine of their node trade with others, if no pair gets nearer by it."""

    def near(*pairs: tuple[int, int]) -> list[int]:
        return sorted(common_levels(topologies[one], topologies[two]) for one, two in pairs)

    if len(set(machines)) == 1:
        return
    for keeper, machine in enumerate(machines):
        node = kept[keeper]
        if machines[node] != machine:
            continue
        for other, its in kept.items():
            if machine in (machines[other], machines[its]):
                continue
            if near((keeper, its), (other, node)) <= near((keeper, node), (other, its)):
                kept[keeper], kept[other] = its, node
                break


def _far_pairs(
    nodes: list[int], topologies: Sequence[tuple[str, ...]], machines: Sequence[str]
) -> list[tuple[int, int]]:
    """Each of at least two nodes, and the one that keeps its copy."""
    order, groups = _at_first_difference(nodes, topologies)
    if len(groups) == 1:
        return _pairs_by_machine(nodes, machines)
    largest = max(groups, key=len)
    others = [node for group in groups if group is not largest for node in group]
    surplus = len(largest) - len(others)
    if surplus < 2:  # a single one cannot keep its own copy
        return _shifted(order, len(largest))
    # As many as the others are kept by them, and keep them. The rest is among itself.
    outside = _from_tallest(largest, topologies, machines, len(others))
    rest = sorted(set(largest) - set(outside))
    across = _shifted([*outside, *others], len(others))
    return [*across, *_far_pairs(rest, topologies, machines)]


def _at_first_difference(
    nodes: Sequence[int], topologies: Sequence[tuple[str, ...]]
) -> tuple[list[int], list[list[int]]]:
    """The nodes in the order of their topologies; and by the first level at which some differ."""
    order = sorted(nodes, key=lambda node: (topologies[node], node))
    level = common_levels(topologies[order[0]], topologies[order[-1]])
    groups: dict[tuple[str, ...], list[int]] = {}
    for node in order:
        groups.setdefault(topologies[node][level : level + 1], []).append(node)
    return order, list(groups.values())


def _from_tallest(
    nodes: Sequence[int],
    topologies: Sequence[tuple[str, ...]],
    machines: Sequence[str],
    count: int,
) -> list[int]:
    """So many nodes, each from the group that is the largest then: the rest is well mixed."""
    order, groups = _at_first_difference(nodes, topologies)
    if len(groups) == 1:
        of_machine: dict[str, list[int]] = {}
        for node in order:
            of_machine.setdefault(machines[node], []).append(node)
        groups = list(of_machine.values())
    heights = {node: height for group in groups for height, node in enumerate(group)}
    return sorted(order, key=lambda node: -heights[node])[:count]


def _pairs_by_machine(nodes: Sequence[int], machines: Sequence[str]) -> list[tuple[int, int]]:
    """One machine after the other, and a step that is as long as the largest one has nodes."""
    of_machine: dict[str, list[int]] = {}
    for node in nodes:
        of_machine.setdefault(machines[node], []).append(node)
    order = [node for its in of_machine.values() for node in its]
    return _shifted(order, max(map(len, of_machine.values())) % len(order) or 1)


def _shifted(order: Sequence[int], step: int) -> list[tuple[int, int]]:
    """Each node, and as its keeper the one that is so many places after it, round the circle."""
    return [(node, order[(place + step) % len(order)]) for place, node in enumerate(order)]
