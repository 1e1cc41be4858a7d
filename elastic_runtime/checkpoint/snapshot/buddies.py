"""Which ranks share the memory of one agent, and which node keeps a copy for which. All pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

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
        buddy = buddies([node.memory.machine for node in nodes])[mine]
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


def buddies(machines: Sequence[str]) -> list[int | None]:
    """Whose files each node keeps a copy of: the node before it, if that is on another machine.

    Every node has one such keeper, on another machine as long as no machine has more than half of
    all nodes.

    Args:
        machines: of each node.

    Returns:
        A node for each node; None for a node that has no other.
    """
    count = len(machines)
    if count < 2:
        return [None] * count
    # One machine after the other, and a step that is as long as the largest one has nodes.
    order = sorted(range(count), key=lambda node: (machines.index(machines[node]), node))
    step = max(machines.count(machine) for machine in machines) % count or 1
    found: list[int | None] = [None] * count
    for place, node in enumerate(order):
        found[order[(place + step) % count]] = node
    return found
