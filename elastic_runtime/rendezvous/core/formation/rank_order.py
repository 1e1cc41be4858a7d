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
    from collections.abc import Callable, Sequence

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.protocol.round_records import RoundRecord


def ranked(
    last: RoundRecord | None,
    nodes: Sequence[NodeRecord],
    size: int,
    record_of: Callable[[str], NodeRecord | None] = lambda _: None,
) -> tuple[NodeRecord, ...]:
    """The members of a round, in the order of their ranks.

    Args:
        last: the round before; None: there was none.
        nodes: that can take part: first those that were in it, by rank; then the others, the
            oldest first.
        size: how many of them do.
        record_of: what is still known of a member that is not among them.
    """
    survivors = [node for node in nodes if last is not None and last.rank_of(node.node) >= 0][:size]
    newcomers = [node for node in nodes if last is None or last.rank_of(node.node) < 0]
    free = size - len(survivors)
    if last is None or len(newcomers) <= free or not any(map(_levels, newcomers)):
        chosen = newcomers[:free]
    else:
        chosen = _chosen(_gaps(last, survivors, record_of)[:free], newcomers, free)
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
    gaps: list[list[tuple[str, ...]]], newcomers: list[NodeRecord], free: int
) -> list[NodeRecord]:
    """Of more newcomers than there is a place for: the nearest one for each gap, then the oldest.

    Of those that are equally near it is the oldest one, too.
    """
    left, chosen = list(newcomers), set()
    for around in gaps:

        def nearness(node: NodeRecord, around: list[tuple[str, ...]] = around) -> int:
            return sum(common_levels(_levels(node), levels) for levels in around)

        nearest = max(left, key=nearness)
        left.remove(nearest)
        chosen.add(nearest.node)
    chosen |= {node.node for node in left[: free - len(chosen)]}
    return [node for node in newcomers if node.node in chosen]


def _gaps(
    last: RoundRecord,
    survivors: list[NodeRecord],
    record_of: Callable[[str], NodeRecord | None],
) -> list[list[tuple[str, ...]]]:
    """For each member that is missing, by rank: to what its successor should be near.

    That is the member itself, while its record is still there, and else the survivors that come
    next before and after it.
    """
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
        elif (record := record_of(member.node)) is not None and _levels(record):
            gaps.append([_levels(record)])
        else:
            waiting.append(list(before))
            gaps.append(waiting[-1])
    return gaps
