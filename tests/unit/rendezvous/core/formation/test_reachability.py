"""Who can form a round where some do not reach others: the pure rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.formation.reachability import (
    choose_connected,
    cut_message,
    severed,
    severed_pairs,
)
from elastic_runtime.rendezvous.core.formation.round_formation import sampled
from elastic_runtime.rendezvous.core.round_parts import split_round
from elastic_runtime.rendezvous.policy import Layout
from tests.unit.rendezvous.node_under_test import node

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.protocol.records import NodeRecord


def _all(names: str, *cuts: str, both: bool = True) -> list[NodeRecord]:
    """Nodes of one letter each, in the order of ranks; ``"ab"`` says that a does not reach b."""
    said: dict[str, set[str]] = {name: set() for name in names}
    for one, two in cuts:
        said[one].add(two)
        if both:
            said[two].add(one)
    return [node(name, unreachable=tuple(sorted(said[name]))) for name in names]


def _chosen(nodes: list[NodeRecord], survivors: int, least: int = 1, most: int = 99) -> str:
    chosen = choose_connected(nodes, survivors, lambda count: min(count, most), least)
    return "".join(one.node for one in chosen)


@pytest.mark.parametrize(
    ("nodes", "survivors", "least", "chosen"),
    [
        (_all("abc"), 3, 1, "abc"),
        (_all("abc", "ca", "cb"), 3, 1, "ab"),  # one from its peers
        (_all("abc", "ab", "ac"), 3, 1, "bc"),  # also if that is rank 0
        (_all("abc", "ab"), 3, 1, "ac"),  # a pair: rank 0 stays
        (_all("abc", "bc"), 3, 1, "ab"),
        (_all("ab", "ab"), 2, 1, "a"),
        (_all("ab", "ab"), 2, 2, "a"),  # too few, whoever it is
        (_all("abcd", "ac", "ad", "bc", "bd"), 4, 1, "ab"),  # two halves
        (_all("abc", "ab", "ac", "bc"), 3, 1, "a"),
        (_all("abcd", "ab", "cd"), 4, 1, "ac"),
        (_all("abxy", "ax", "ay"), 2, 1, "ab"),  # survivors before newcomers
        (_all("axy", "ax"), 1, 1, "ay"),
        (_all("abxy", "ab", "ax", "ay"), 2, 2, "bxy"),  # enough of them first
        (_all("axy", "ax", "ay"), 1, 2, "a"),  # none without a survivor
        (_all("xyz", "xy"), 0, 1, "xz"),  # there is none
    ],
)
def test_the_best_set_of_those_that_reach_each_other(
    nodes: list[NodeRecord], survivors: int, least: int, chosen: str
) -> None:
    assert _chosen(nodes, survivors, least) == chosen


def test_it_is_enough_that_one_side_says_it() -> None:
    one, two = _all("ab", "ba", both=False)
    assert severed(one, two)
    assert severed(two, one)
    assert _chosen([one, two], 2) == "a"


def test_who_misses_somebody_who_is_not_here_is_in_nobodys_way() -> None:
    assert _chosen([node("a", unreachable=("z",)), node("b")], 2) == "ab"


def test_what_there_is_no_use_for_counts_for_nothing() -> None:
    nodes = _all("abxyz", "bx", "by", "bz")
    assert _chosen(nodes, 1, most=2) == "ab"


def test_people_are_told_who_does_not_reach_whom() -> None:
    assert cut_message(severed_pairs(_all("abc", "ca", "cb"))) == (
        "no connection between a and c; between b and c"
    )
    pairs = severed_pairs(_all("abcdefgh", "ab", "cd", "ef", "gh"))
    assert cut_message(pairs).endswith("between e and f, and 1 more")


@given(
    st.integers(1, 14).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40),
            st.integers(0, count),
            st.integers(1, 3),
        )
    )
)
def test_a_set_never_holds_a_pair_that_is_cut_and_no_one_more_would_fit(
    case: tuple[int, set[tuple[int, int]], int, int],
) -> None:
    count, cuts, survivors, least = case
    letters = "abcdefghijklmn"[:count]
    nodes = _all(letters, *(letters[one] + letters[two] for one, two in cuts if one != two))
    chosen = choose_connected(nodes, survivors, lambda size: size, least)
    assert not any(severed(one, two) for one, two in combinations(chosen, 2))
    assert [one.node for one in chosen] == sorted(one.node for one in chosen)
    if survivors:
        assert any(letters.index(one.node) < survivors for one in chosen)
    out = [one for one in nodes if one not in chosen]
    for one in out:
        assert any(severed(one, other) for other in chosen), "there was room for one more"


def test_the_only_survivor_is_held_though_it_misses_most() -> None:
    cuts = ("ac", "ad", "ae", "af", "aj", "ak", "bg", "hi")
    chosen = choose_connected(_all("abcdefghijk", *cuts), 1, lambda size: size, 1)
    assert [one.node for one in chosen] == [*"abh"]


def test_a_large_job_that_falls_in_two_goes_on_with_the_larger_part() -> None:
    names = [f"n{number:03}" for number in range(400)]
    large, small = names[150:], names[:150]
    nodes = [
        node(name, unreachable=tuple(small if name in set(large) else large)) for name in names
    ]
    chosen = choose_connected(nodes, 400, lambda size: size, 1)
    assert [one.node for one in chosen] == large


@pytest.mark.parametrize("side", [lambda place: place % 2, lambda place: place * 5 // 1000])
def test_a_cut_shows_also_between_nodes_that_did_not_look_for_each_other(
    side: Callable[[int], int],
) -> None:
    """Each has looked for a sample: what nobody said of two nodes must not bring them together."""
    names = [f"{place:032x}" for place in range(1000)]
    members = tuple(Member(name, name, "127.0.0.1", 1) for name in names)
    full = RoundRecord(3, "life", members, 0, "")
    head, _ = split_round(full, Layout())
    last = replace(full, group=head.group, parts=head.parts, nodes=1000)
    looked = sampled(last)
    assert looked is not None
    of = {name: side(place) for place, name in enumerate(names)}
    nodes = [
        node("n", node=name, unreachable=tuple(o for o in looked(name) if of[o] != of[name]))
        for name in names
    ]
    assert max(len(one.encode()) for one in nodes) < 20_000
    chosen = choose_connected(nodes, 1000, lambda size: size, 1, looked)
    assert [one.node for one in chosen] == [name for name in names if of[name] == of[names[0]]]
