"""Which nodes reach each other, and which of them can form a round: pure.

Each node writes down which nodes it does not reach (``reachability_survey``). A pair reaches each
other unless one of the two says that it does not: a cut may well be visible from one side only, and
a group needs all its pairs. A pair that no report names counts as connected, so that a node of
which only the probe port is closed takes part until a round breaks without any other cause.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_runtime.protocol.records import NodeRecord

# Up to so many nodes that miss another one, every choice among them is tried; above, those that
# miss most are left out one by one, which is as good where a network falls into parts.
_EXACT = 10
# So many survivors are tried then, if that leaves out all of them.
_AROUND = 8


def severed(one: NodeRecord, two: NodeRecord) -> bool:
    """Whether two nodes are known not to reach each other."""
    return two.node in one.unreachable or one.node in two.unreachable


def severed_pairs(nodes: Sequence[NodeRecord]) -> list[tuple[NodeRecord, NodeRecord]]:
    """The pairs among these nodes that are known not to reach each other."""
    places = {node.node: place for place, node in enumerate(nodes)}
    pairs = {
        (min(place, other), max(place, other))
        for place, node in enumerate(nodes)
        for name in node.unreachable
        if (other := places.get(name, place)) != place
    }
    return [(nodes[one], nodes[two]) for one, two in sorted(pairs)]


def cut_message(pairs: Sequence[tuple[NodeRecord, NodeRecord]]) -> str:
    """Which nodes do not reach each other, for people."""
    missed: dict[str, list[str]] = {}
    for one, two in pairs:
        missed.setdefault(one.name, []).append(two.name)
    shown = [f"{name} and {listed(others)}" for name, others in list(missed.items())[:3]]
    more = f", and {len(missed) - 3} more" if len(missed) > 3 else ""
    return f"no connection between {'; between '.join(shown)}{more}"


def choose_connected(
    nodes: Sequence[NodeRecord],
    survivors: int,
    usable_size: Callable[[int], int],
    least: int,
    looked_for: Callable[[str], Iterable[str]] | None = None,
) -> list[NodeRecord]:
    """The nodes that are to form a round: of those that all reach each other, the best set.

    Enough of them comes first; then survivors, who have the training state; then their number, as
    far as there is use for it; then those further to the front, rank 0 first of all.

    Args:
        nodes: those that want to take part, in the order of ranks: survivors first.
        survivors: how many of them, the first ones, were in the last round. If there are any, the
            set holds at least one of them.
        usable_size: how large a world so many nodes can form.
        least: fewest nodes of a round.
        looked_for: which nodes each node has probed, where that is not all: which nodes are cut
            off shows then also in which have found which.

    Returns:
        The set, in the same order. All of the nodes if no two are known to be cut off.
    """
    pairs = severed_pairs(nodes)
    if not pairs:
        return list(nodes)
    missing = _missing(pairs)
    free = [node for node in nodes if node.node not in missing]
    cut = [node for node in nodes if node.node in missing]
    places = {node.node: place for place, node in enumerate(nodes)}

    def worth(kept: Iterable[str]) -> tuple[bool, bool, int, int, list[int]]:
        chosen = sorted([*(places[node.node] for node in free), *(places[one] for one in kept)])
        held = sum(place < survivors for place in chosen)
        size = usable_size(len(chosen))
        front = [-place for place in chosen]
        return (not survivors or held > 0, size >= least, held, size, front)

    names = [node.node for node in cut]
    if len(cut) <= _EXACT:
        choices = _all_sets(names, missing)
    elif looked_for is not None:
        choices = _sides(names, missing, looked_for)
    else:
        choices = _few_sets(names, [n for n in names if places[n] < survivors], missing)
    kept = set(max(choices, key=worth))
    return [node for node in nodes if node.node not in missing or node.node in kept]


def _missing(pairs: Sequence[tuple[NodeRecord, NodeRecord]]) -> dict[str, set[str]]:
    missing: dict[str, set[str]] = {}
    for one, two in pairs:
        missing.setdefault(one.node, set()).add(two.node)
        missing.setdefault(two.node, set()).add(one.node)
    return missing


def _all_sets(names: list[str], missing: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Every set of these nodes in which no node misses another one."""
    return [
        some
        for size in range(len(names) + 1)
        for some in combinations(names, size)
        if not any(two in missing[one] for one, two in combinations(some, 2))
    ]


def _few_sets(
    names: list[str], survivors: list[str], missing: dict[str, set[str]]
) -> list[tuple[str, ...]]:
    """A good set in which no node misses another, and one around each of the first survivors.

    The good one need not contain any survivor: they may be the ones that miss most.
    """
    sets = [_filled(_thinned(names, missing), names, missing)]
    if not set(survivors) & set(sets[0]):
        for one in survivors[:_AROUND]:
            reached = [name for name in names if name != one and name not in missing[one]]
            sets.append(_filled((one, *_thinned(reached, missing)), names, missing))
    return sets


def _sides(
    names: list[str], missing: dict[str, set[str]], looked_for: Callable[[str], Iterable[str]]
) -> list[tuple[str, ...]]:
    """A good set among those that have found each other, or one another's finds, for each side.

    Two nodes that have not probed each other miss each other all the same if a cut runs between
    them. No node has found another one across it.
    """
    there, sides = dict.fromkeys(names), []
    while there:
        first = next(iter(there))
        del there[first]
        side, new = {first}, [first]
        while new:
            one = new.pop()
            found = [two for two in looked_for(one) if two in there and two not in missing[one]]
            for two in found:
                del there[two]
            side.update(found)
            new += found
        sides.append(side)
    first_ones = sides[:_AROUND]
    largest = sorted(sides, key=len, reverse=True)[:_AROUND]
    tried = {id(side): side for side in (*first_ones, *largest)}.values()
    return [
        _filled(_thinned([name for name in names if name in side], missing), names, missing)
        for side in tried
    ]


def _filled(
    kept: tuple[str, ...], names: list[str], missing: dict[str, set[str]]
) -> tuple[str, ...]:
    """With all that can be taken back in, those to the front first."""
    found = set(kept)
    for name in names:
        if not missing[name] & found:
            found.add(name)
    return tuple(found)


def _thinned(names: list[str], missing: dict[str, set[str]]) -> tuple[str, ...]:
    """Without those that miss most of the others, the last of them first."""
    kept = {name: place for place, name in enumerate(names)}
    counts = {name: sum(other in kept for other in missing[name]) for name in names}
    heap = [(-counts[name], -place) for name, place in kept.items()]
    heapify(heap)
    while heap:
        most, place = heappop(heap)
        name = names[-place]
        if name not in kept or -most != counts[name]:
            continue  # an entry of before others went
        if not most:
            break
        del kept[name]
        for other in missing[name]:
            if other in kept:
                counts[other] -= 1
                heappush(heap, (-counts[other], -kept[other]))
    return tuple(kept)
