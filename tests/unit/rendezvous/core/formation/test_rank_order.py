"""Which ranks the nodes of a round get: survivors keep their order, near ones are neighbours."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.protocol.records import ASKED, GONE, ROUND, FaultReport
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.formation.rank_order import ranked
from elastic_runtime.rendezvous.core.membership_events import Tick
from elastic_runtime.topology import known_topology
from tests.unit.rendezvous.node_under_test import NodeUnderTest, back, job, node, sealed, switch

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    leads = NodeUnderTest("a").wants(node("a", topology="z2"))
    leads.sees(job(4, 4), node("a", topology="z2"), *others)
    assert leads.members() == ["b", "d", "a", "c"]
    record = leads.written(RoundRecord, ROUND)
    assert record is not None
    assert record.store_port == others[0].store_port


def test_a_leader_takes_the_spare_that_is_nearest_to_a_lost_node() -> None:
    own = back("a", 3, topology="z1")
    members = (own, back("b", 3, topology="z2"))
    spares = _nodes(s="z1", t="z2")
    leads = NodeUnderTest("a").wants(own)
    shown = (job(3, 3), sealed(3, "a", "b", "c"), switch(3, broken=True), *members, *spares)
    leads.sees(*shown).settle().feed(Tick())
    assert leads.members() == ["a", "b", "t"]


def test_what_a_lost_node_has_said_counts_while_it_is_there() -> None:
    own = back("a", 3, topology="z1")
    asked = FaultReport(3, ASKED, "it was asked to leave")
    gone = back("b", 3, asked, topology="z1", status=GONE)
    third = back("c", 3, topology="z2")
    leads = NodeUnderTest("a").wants(own)
    shown = (job(3, 3), sealed(3, "a", "b", "c"), switch(3, broken=True), own, gone, third)
    leads.sees(*shown, *_nodes(s="z2", t="z1"))
    assert leads.members() == ["a", "c", "t"]
