"""The order of the nodes of a round, which their ranks follow: pure.

Whoever was in the last round keeps its place among the others that were: a new rank costs a worker
more than a long way costs a message. Newcomers come after them. Among those that have no place yet,
nodes that are near each other in their topology are neighbours, as ranks that are neighbours talk
to each other most. Nodes that say no topology are taken as they have come; if none says one, all
are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.topology import common_levels, known_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.protocol.round_records import RoundRecord


def ranked(
    last: RoundRecord | None, nodes: Sequence[NodeRecord], size: int
) -> tuple[NodeRecord, ...]:
    """The members of a round, in the order of their ranks.

    Args:
        last: the round before; None: there was none.
        nodes: that can take part: first those that were in it, by rank; then the others, the
            oldest first.
        size: how many of them do.
    """
    survivors = [node for node in nodes if last is not None and last.rank_of(node.node) >= 0][:size]
    newcomers = [node for node in nodes if last is None or last.rank_of(node.node) < 0]
    chosen = _chosen(last, survivors, newcomers, size - len(survivors))
    return *survivors, *_neighbours(chosen, _levels(survivors[-1]) if survivors else ())


def _levels(node: NodeRecord) -> tuple[str, ...]:
    return known_topology(node.topology)


def _neighbours(nodes: Sequence[NodeRecord], before: tuple[str, ...]) -> list[NodeRecord]:
    """Near ones beside each other: first those that are near to the node before all of them.

    Nodes that share some first levels are in one piece of this order, at every level.
    """

    def place(node: NodeRecord) -> tuple[bool, int, tuple[str, ...]]:
        levels = _levels(node)
        return not levels, -common_levels(levels, before), levels

    return sorted(nodes, key=place)


def _chosen(
    last: RoundRecord | None, survivors: list[NodeRecord], newcomers: list[NodeRecord], free: int
) -> list[NodeRecord]:
    """Which newcomers there is a place for: for each member that is missing the nearest one.

    That is the one that is nearest to the members that were before and after it. What else there is
    place for, and what is equally near, goes to the oldest.
    """
    left = list(newcomers)
    if last is None or len(left) <= free or not any(map(_levels, left)):
        return left[:free]
    chosen = set()
    for around in _gaps(last, survivors)[:free]:
        nearest = max(
            left, key=lambda node: sum(common_levels(_levels(node), one) for one in around)
        )
        left.remove(nearest)
        chosen.add(nearest.node)
    chosen |= {node.node for node in left[: free - len(chosen)]}
    return [node for node in newcomers if node.node in chosen]


def _gaps(last: RoundRecord, survivors: list[NodeRecord]) -> list[list[tuple[str, ...]]]:
    """For each member that is missing, by rank: the topologies of its next survivors."""
    there = {node.node: _levels(node) for node in survivors}
    before: list[tuple[str, ...]] = []
    gaps: list[list[tuple[str, ...]]] = []
    waiting: list[list[tuple[str, ...]]] = []
    for member in last.members:
        if member.node in there:
            before = [there[member.node]]
            for gap in waiting:
                gap += before
            waiting = []
        else:
            waiting.append(list(before))
            gaps.append(waiting[-1])
    return gaps
