"""What a cut closes, and which ones a seed draws."""

from __future__ import annotations

import pytest

from tests.partitions.cuts import Cut, Kind, drawn
from tests.partitions.network import HUB, Way

_NODES = ["a", "b", "c", "d"]


def _ways(*pairs: str) -> set[Way]:
    return {Way(*({"s": HUB}.get(place, place) for place in pair)) for pair in pairs}


@pytest.mark.parametrize(
    ("kind", "nodes", "closed"),
    [
        (Kind.PEERS, 3, ["ba", "ab", "bc", "cb"]),
        (Kind.PAIR, 3, ["bc", "cb"]),
        (Kind.EACH, 3, ["ab", "ba", "ac", "ca", "bc", "cb"]),
        (Kind.HALVES, 4, ["ba", "ab", "bd", "db", "ca", "ac", "cd", "dc"]),
        (Kind.UNHEARD, 3, ["ba", "bc"]),
        (Kind.DEAF, 3, ["ab", "cb"]),
        (Kind.STORE, 3, ["bs", "sb"]),
        (Kind.STORES, 2, ["as", "sa", "bs", "sb"]),
        (Kind.SILENT_STORE, 3, ["sb"]),
        (Kind.ALONE, 3, ["ab", "ba", "cb", "bc", "bs", "sb"]),
        (Kind.ALL, 2, ["ab", "ba", "as", "sa", "bs", "sb"]),
    ],
)
def test_what_a_cut_closes(kind: Kind, nodes: int, closed: list[str]) -> None:
    assert Cut(kind, 1, 3).ways(_NODES[:nodes]) == _ways(*closed)


def test_a_seed_draws_the_same_cuts_and_every_kind() -> None:
    first = [*drawn(7, 22, 3, (3.0, 10.0))]
    assert first == [*drawn(7, 22, 3, (3.0, 10.0))]
    assert first != [*drawn(8, 22, 3, (3.0, 10.0))]
    assert {cut.kind for cut in first[:11]} == set(Kind) == {cut.kind for cut in first[11:]}
    assert first[0].calm
