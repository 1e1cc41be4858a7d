"""Who is in a round, and at which rank: near ones are neighbours, and all reach each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, groupby
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.formation.rank_order import ranked
from elastic_runtime.rendezvous.core.formation.reachability import (
    choose_connected,
    cut_message,
    severed,
    severed_pairs,
)
from elastic_runtime.rendezvous.core.formation.round_formation import sampled
from elastic_runtime.rendezvous.core.round_parts import split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.topology import known_topology
from tests.unit.rendezvous.node_under_test import NodeUnderTest, back, job, node, sealed, switch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.protocol.records import NodeRecord


def _nodes(**topologies: str) -> list[NodeRecord]:
    return [node(name, topology=text) for name, text in topologies.items()]


def _names(nodes: Sequence[NodeRecord]) -> str:
    return "".join(record.node for record in nodes)


def test_in_a_first_round_near_nodes_are_neighbours_and_unknown_ones_come_last() -> None:
    nodes = _nodes(a="", b="z2/r1", c="z1/r2", d="z2/r2", e="z1/r1", f="z2/r1", g="", h="z1")
    assert _names(ranked(None, nodes, 8)) == "hecbfdag"


def test_who_takes_part_in_a_first_round_does_not_depend_on_where_it_is() -> None:
    nodes = _nodes(a="z2", b="z1", c="z2", d="z0")
    assert _names(ranked(None, nodes, 3)) == "bac"


def test_odd_text_from_the_store_counts_as_none() -> None:
    nodes = _nodes(a="z2//", b="z" * 65, c="z1", d="\0")
    assert _names(ranked(None, nodes, 4)) == "cabd"


def test_survivors_keep_their_order_and_newcomers_follow_beside_each_other() -> None:
    """First those that are near to the last survivor."""
    nodes = _nodes(a="z2/r1", b="z1/r1", c="z1/r2", d="z2/r1", e="z1/r1", f="z1/r2", g="", h="z2")
    last = sealed(3, "a", "x", "b", "c")
    assert _names(ranked(last, nodes, 8)) == "abcfehdg"


def test_of_several_spares_the_one_nearest_to_the_gap_is_taken() -> None:
    last = sealed(3, "a", "b", "c", "d")
    far, near = "z2/r1", "z1/r1"
    nodes = _nodes(a=near, c=near, d=far, s="z3", t=far, u=near)
    assert _names(ranked(last, nodes, 4)) == "acdu"  # b was between a and c
    # At the edge of a place its record says what was lost, as long as that is there.
    gone = {"b": node("b", topology=far)}
    nodes = _nodes(a=near, c=far, d=far, s=near, t=far)
    assert _names(ranked(last, nodes, 4)) == "acds"
    assert _names(ranked(last, nodes, 4, gone.get)) == "acdt"
    # The end of a round is a gap, too, as is one that is as wide as two nodes.
    nodes = _nodes(a=near, b=near, s=far, t=near)
    assert _names(ranked(last, nodes, 3)) == "abt"
    nodes = _nodes(a=near, d=far, s="z3", t=far, u=near)
    assert sorted(_names(ranked(last, nodes, 4))) == sorted("adtu")
    # Who is equally near, or has nothing to be near to, waits for its turn.
    nodes = _nodes(a="", c="", d="", s="z3", t=far)
    assert _names(ranked(last, nodes, 4)) == "acds"
    # Nobody is missing: the job grows by the oldest.
    nodes = _nodes(a=near, b=near, s=far, t=near)
    assert _names(ranked(sealed(3, "b", "a"), [nodes[1], nodes[0], *nodes[2:]], 3)) == "bas"
    assert _names(ranked(sealed(3, "a", "b"), nodes, 3)) == "abs"


_LEVELS = st.lists(st.sampled_from("ab"), max_size=3).map("/".join)


@st.composite
def _rounds(
    draw: st.DrawFn, topologies: st.SearchStrategy[str] = _LEVELS
) -> tuple[RoundRecord | None, list[NodeRecord], int]:
    """A last round, of which some are lost; who can be in the next one; and its size."""
    members = [f"m{number}" for number in range(draw(st.integers(0, 6)))]
    there = [name for name in members if draw(st.booleans())]
    new = [f"n{number}" for number in range(draw(st.integers(0 if there else 1, 6)))]
    nodes = [node(name, topology=draw(topologies)) for name in (*there, *new)]
    last = sealed(3, *members) if members else None
    return last, nodes, draw(st.integers(1, len(nodes)))


@given(_rounds())
def test_every_node_has_one_place_and_survivors_come_first_as_they_were(
    case: tuple[RoundRecord | None, list[NodeRecord], int],
) -> None:
    last, nodes, size = case
    found = ranked(last, nodes, size)
    assert len(found) == size
    assert not Counter(found) - Counter(nodes)
    kept = [one for one in nodes if last is not None and last.rank_of(one.node) >= 0][:size]
    assert list(found[: len(kept)]) == kept
    assert found == ranked(last, nodes, size)


@given(_rounds(st.just("")))
def test_without_topologies_all_is_as_it_came(
    case: tuple[RoundRecord | None, list[NodeRecord], int],
) -> None:
    last, nodes, size = case
    assert list(ranked(last, nodes, size)) == nodes[:size]


@given(_rounds())
def test_newcomers_that_share_levels_are_in_one_piece(
    case: tuple[RoundRecord | None, list[NodeRecord], int],
) -> None:
    last, nodes, size = case
    found = ranked(last, nodes, size)
    places = [
        known_topology(one.topology) for one in found if last is None or last.rank_of(one.node) < 0
    ]
    for depth in (1, 2, 3):
        groups = [levels for levels, _ in groupby(place[:depth] for place in places)]
        whole = [levels for levels in groups if len(levels) == depth]
        assert len(whole) == len(set(whole))


# By the leader


def test_a_leader_seals_the_first_round_in_this_order() -> None:
    others = _nodes(b="z1", c="z2", d="z1")
    own = node("a", topology="z2")
    leads = NodeUnderTest("a").wants(own).sees(job(4, 4), own, *others)
    assert leads.members() == ["b", "d", "a", "c"]
    assert leads.wrote(RoundRecord).store_port == others[0].store_port


def _of_a_broken_round(*others: NodeRecord) -> NodeUnderTest:
    """The leader of a round of a, b and c that is broken."""
    own = back("a", 3, topology="z1")
    last = sealed(3, "a", "b", "c")
    return NodeUnderTest("a").wants(own).sees(job(3, 3), last, switch(3, broken=True), own, *others)


def test_a_leader_takes_the_spare_that_is_nearest_to_a_lost_node() -> None:
    spares = _nodes(s="z1", t="z2")
    leads = _of_a_broken_round(back("b", 3, topology="z2"), *spares).settle().later()
    assert leads.members() == ["a", "b", "t"]


def test_what_a_lost_node_has_said_counts_while_it_is_there() -> None:
    asked = FaultReport(3, records.ASKED, "it was asked to leave")
    gone = back("b", 3, asked, topology="z1", status=records.GONE)
    third = back("c", 3, topology="z2")
    leads = _of_a_broken_round(gone, third, *_nodes(s="z2", t="z1"))
    assert leads.members() == ["a", "c", "t"]


# ---------------------------------------------------------------- who reaches whom


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
