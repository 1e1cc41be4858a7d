"""Which ways a cut closes, and the cuts of a seed: pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from itertools import permutations
from typing import TYPE_CHECKING

from tests.partitions.network import HUB, How, Way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Kind(Enum):
    """What does not reach what. *One* node is the one that is struck."""

    PEERS = "one from its peers"
    PAIR = "two from each other"  # the one and the next one
    EACH = "each from all peers"
    HALVES = "one half from the other"
    UNHEARD = "peers do not hear one"
    DEAF = "one does not hear its peers"
    STORE = "one from the store"
    STORES = "all from the store"
    SILENT_STORE = "one does not hear the store"
    ALONE = "one from all"
    ALL = "all from all"


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut.

    Attributes:
        kind: what it closes.
        one: index of the node that is struck.
        seconds: until it heals.
        how: what becomes of the packets.
        pause: seconds since the job was whole, or, before a later cut, since the heal.
    """

    kind: Kind
    one: int
    seconds: float
    how: How = How.DROP
    calm: bool = True

    def __str__(self) -> str:
        how = "" if self.how is How.DROP else f", {self.how.name.lower()}"
        pace = "" if self.calm else ", soon after the last"
        return f"{self.kind.value} (node {self.one}) for {self.seconds:g} s{how}{pace}"

    def ways(self, nodes: Sequence[str]) -> set[Way]:
        """What it closes between these nodes and the store."""
        one = nodes[self.one % len(nodes)]
        peers = [node for node in nodes if node != one]
        following = nodes[(self.one + 1) % len(nodes)]
        half = [nodes[(self.one + i) % len(nodes)] for i in range(len(nodes) // 2)]
        match self.kind:
            case Kind.PEERS:
                return both([one], peers)
            case Kind.PAIR:
                return both([one], [following])
            case Kind.EACH:
                return {Way(a, b) for a, b in permutations(nodes, 2)}
            case Kind.HALVES:
                return both(half, [node for node in nodes if node not in half])
            case Kind.UNHEARD:
                return {Way(one, peer) for peer in peers}
            case Kind.DEAF:
                return {Way(peer, one) for peer in peers}
            case Kind.STORE:
                return both([one], [HUB])
            case Kind.STORES:
                return both(nodes, [HUB])
            case Kind.SILENT_STORE:
                return {Way(HUB, one)}
            case Kind.ALONE:
                return both([one], [*peers, HUB])
            case Kind.ALL:
                return {Way(a, b) for a, b in permutations([*nodes, HUB], 2)}


def both(some: Sequence[str], others: Sequence[str]) -> set[Way]:
    """The ways between two sets of places, in both directions."""
    return {way for a in some for b in others for way in (Way(a, b), Way(b, a))}


def drawn(seed: int, count: int, nodes: int, seconds: Sequence[float]) -> Iterator[Cut]:
    """Draws cuts: each kind comes before any comes again.

    Args:
        seed: the same one draws the same cuts.
        count: how many.
        nodes: how many nodes the job has.
        seconds: the lengths to draw from.
    """
    draw = random.Random(seed)
    kinds: list[Kind] = []
    for number in range(count):
        if not kinds:
            kinds = draw.sample([*Kind], len(Kind))
        how = draw.choices([*How], weights=[8, 1, 1])[0]
        calm = number == 0 or draw.random() < 0.75
        yield Cut(kinds.pop(), draw.randrange(nodes), draw.choice(seconds), how, calm)
