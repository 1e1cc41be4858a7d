"""Who is in the next round, at which rank, and what is known of the members of the last one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, groupby
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport, NodeRecord, OutcomeRecord, SwitchRecord
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction, ListParts
from elastic_runtime.rendezvous.core.formation.member_status import (
    MemberStatus,
    accompanied,
    alone,
    fault_of_member,
    last_round,
    leader_of,
    loss_message,
)
from elastic_runtime.rendezvous.core.formation.rank_order import ranked
from elastic_runtime.rendezvous.core.formation.reachability import (
    choose_connected,
    cut_message,
    severed,
    severed_pairs,
)
from elastic_runtime.rendezvous.core.formation.round_formation import sampled
from elastic_runtime.rendezvous.core.membership_events import (
    REFUSED,
    Applied,
    LeftRound,
    PartsGone,
    PartsSeen,
)
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.notices import BadRecord, Sealed, Waiting
from elastic_runtime.rendezvous.core.round_parts import all_members, keys, split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.round_completer import parts_seen
from elastic_runtime.rendezvous.store_contract import ABSENT, Changed, Expect, StoreEntry
from elastic_runtime.topology import known_topology
from tests.unit.rendezvous.node_under_test import (
    LIFE,
    POLICY,
    NodeUnderTest,
    back,
    job,
    node,
    sealed,
    switch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# ---------------------------------------------------------------- ranks


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


# ---------------------------------------------------------------- the last round

LAST = sealed(3, "a", "b")
B = LAST.members[1]


def seen_by_a(*others: NodeRecord) -> NodeUnderTest:
    return NodeUnderTest("a").sees(job(), node("a", incarnation=LIFE), *others, LAST).settle()


def status_of_b(tested: NodeUnderTest) -> MemberStatus:
    return last_round(tested.state, job(), LAST, tested.now).statuses["b"]


@pytest.mark.parametrize(
    ("record", "status"),
    [
        (node("b", incarnation=LIFE), MemberStatus.RUNNING),
        (back("b", 3), MemberStatus.BACK),
        (back("b", 2), MemberStatus.RUNNING),
        (back("b", 3, status=records.GONE), MemberStatus.LEFT),
        (node("b", incarnation=LIFE, status=records.GONE), MemberStatus.LEFT),
        (node("b", incarnation=LIFE, status=records.DONE, done_round=3), MemberStatus.ENDED_WELL),
        (node("b", incarnation=LIFE, status=records.GONE, done_round=3), MemberStatus.ENDED_WELL),
        (node("b", incarnation=LIFE, status=records.DONE, done_round=2), MemberStatus.RUNNING),
        (node("b", incarnation="earlier", left=3), MemberStatus.RUNNING),
    ],
)
def test_what_a_member_says_of_itself_is_its_status(
    record: NodeRecord, status: MemberStatus
) -> None:
    assert status_of_b(seen_by_a(record)) is status


def test_an_absent_key_proves_something_only_after_a_while() -> None:
    tested = seen_by_a()
    assert status_of_b(tested) is MemberStatus.LEASE_ENDED
    tested.regained(tested.now)
    assert status_of_b(tested) is MemberStatus.RUNNING
    assert loss_message(tested.state, B) == "node b lost: its lease has ended"


def test_the_oldest_node_that_lives_leads() -> None:
    tested = NodeUnderTest("b").sees(job(), node("c"), node("a"), node("b"))
    leads = [leader_of(tested.state)]
    leads.append(leader_of(tested.changes(node("c", status=records.GONE)).state))
    leads.append(leader_of(tested.changes(gone=("nodes/a",)).state))
    assert [one and one.record.node for one in leads] == ["c", "a", None]


def test_who_is_alone_and_who_has_company() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    assert alone(tested.state) and not accompanied(tested.state)
    tested.changes(node("b"))
    assert not alone(tested.state) and accompanied(tested.state)
    unseen = NodeUnderTest("a").sees(job(), node("a"), wide=False)
    assert not alone(unseen.state), "others may be there, which it has not asked for"


def test_a_report_of_an_earlier_round_is_no_reason() -> None:
    for round, counts in ((3, True), (2, False)):
        fault = FaultReport(round, "failed", "an error")
        found = fault_of_member(seen_by_a(back("b", 3, fault)).state, B, LAST)
        assert found == (fault if counts else None)


@pytest.mark.parametrize(
    ("status", "lost", "reason"),
    [
        (records.IN, 1, "node b lost: its port refuses"),
        (records.LEAVING, 0, "node b was asked to leave"),  # its goodbye is on its way
    ],
)
def test_who_was_asked_to_leave_and_whose_port_refuses_has_left(
    status: str, lost: int, reason: str
) -> None:
    own = back("a", 3, FaultReport(3, "failed", "lost the connection to a peer", consequence=True))
    shown = job(), LAST, switch(3, broken=True), own, node("b", incarnation=LIFE, status=status)
    tested = NodeUnderTest("a").wants(own).sees(*shown).settle()
    record = tested.later(POLICY.probe_after).probed("b", REFUSED, 0.001).wrote(RoundRecord)
    assert (record.budget.lost, record.budget.planned) == (lost, 1 - lost)
    assert record.reason == reason
    assert tested.members() == ["a"]


def test_a_goodbye_counts_more_than_a_port_that_refuses() -> None:
    tested = seen_by_a(node("b", incarnation=LIFE)).probed("b", REFUSED)
    assert status_of_b(tested) is MemberStatus.DEAD
    tested.changes(back("b", 3, FaultReport(3, records.PLANNED, "told to"), status=records.GONE))
    assert status_of_b(tested) is MemberStatus.LEFT


# ---------------------------------------------------------------- the parts of rounds in the store

LAYOUT = Layout(most=2, part=2, first=2, keepers=2)
NAMES = "abcdef"
HEAD, PARTS = split_round(sealed(3, *NAMES), LAYOUT)
OURS = frozenset(keys(HEAD))
STRAY = "group/0123456789abcdef/00000"
# A round has been there for so long when its parts are looked at, and then again after so long.
FIRST, AGAIN = 10.1, 60.1


def leader_of_a_whole_round(most: int = 6) -> NodeUnderTest:
    """The leader of a round that is whole, with all its members; or of a small one."""
    tested = NodeUnderTest("a", replace(POLICY, layout=LAYOUT, max_nodes=most))
    full = replace(sealed(3, *NAMES), group=HEAD.group, parts=HEAD.parts, nodes=6, workers=6)
    last = full if most > 2 else sealed(3, "a", "b")
    return tested.sees(job(high=most), *map(node, NAMES), last).settle()


def _asked(tested: NodeUnderTest) -> bool:
    return any(isinstance(action, ListParts) for action in tested.actions)


def _sees(
    tested: NodeUnderTest, intact: frozenset[str], wrong: frozenset[str] = frozenset()
) -> NodeUnderTest:
    assert _asked(tested.later(FIRST))
    return tested.feed(PartsSeen(tested.state.shown.round.version, intact, wrong))


def test_it_is_looked_from_time_to_time_while_the_round_runs() -> None:
    tested = leader_of_a_whole_round().later(FIRST)
    assert _asked(tested)
    assert not _asked(tested.feed(PartsSeen(tested.state.shown.round.version, OURS)))
    assert tested.transaction(records.ROUND) is None
    assert not _asked(tested.later(AGAIN / 2))
    assert _asked(tested.later(AGAIN / 2))


def test_a_store_that_does_not_answer_is_asked_again_later() -> None:
    tested = leader_of_a_whole_round().later(FIRST)
    assert not _asked(tested.later(1.0))
    assert _asked(tested.later(AGAIN))


def test_parts_of_no_round_go_with_a_write_that_nobody_who_seals_can_miss() -> None:
    tested = _sees(leader_of_a_whole_round(), OURS | {STRAY})
    written = tested.request(records.ROUND)
    assert written.deletes == (STRAY,)
    assert Expect(records.ROUND, tested.state.shown.round.version) in written.expects
    assert all(expect.version != ABSENT for expect in written.expects)
    (head,) = written.puts
    assert RoundRecord.decode(records.ROUND, head.value) == HEAD  # as it was


@pytest.mark.parametrize("wrong", [(), (min(OURS),)], ids=["missing", "wrong"])
def test_a_part_that_is_missing_or_wrong_is_written_again_and_a_wrong_one_is_said(
    wrong: tuple[str, ...],
) -> None:
    tested = _sees(leader_of_a_whole_round(), OURS - {min(OURS)}, frozenset(wrong))
    assert [bad.key for bad in tested.told(BadRecord)] == [*wrong]
    (write,) = [action for action in tested.actions if isinstance(action, ApplyTransaction)]
    assert write.first == PARTS


def test_what_was_seen_beside_another_round_says_nothing() -> None:
    tested = leader_of_a_whole_round().later(FIRST)
    tested.feed(PartsSeen(tested.state.shown.round.version - 1, frozenset({STRAY})))
    assert tested.transaction(records.ROUND) is None


def test_a_job_whose_rounds_are_in_one_piece_looks_for_nothing() -> None:
    assert not _asked(leader_of_a_whole_round(most=2).later(FIRST))


@pytest.mark.parametrize("broken", [b"rubbish", b"{}", b""])
def test_a_part_that_was_overwritten_is_seen(broken: bytes) -> None:
    entries = [StoreEntry(put.key, put.value, 1, 1) for one in PARTS for put in one.puts]
    entries[0] = replace(entries[0], value=broken)
    seen = parts_seen(lambda prefix: entries, 7)
    assert seen == PartsSeen(7, OURS - {entries[0].key}, frozenset({entries[0].key}))


# ---------------------------------------------------------------- the roll call

PARTED = replace(POLICY, layout=LAYOUT, max_nodes=6)
# Those who may keep the members are waited for twice as long as an absent key proves nothing.
PATIENCE = 2 * PARTED.settle + 0.1
ROLL = replace(switch(3, broken=False), roll=True)


def leader_without_parts(*others: NodeRecord, name: str = "b") -> NodeUnderTest:
    """The oldest node that lives: it knows the first members only, and the parts are gone."""
    tested = NodeUnderTest(name, PARTED).sees(job(high=6), node(name), *others, HEAD).settle()
    return tested.feed(PartsGone(tested.state.shown.round.version))


def _patient(tested: NodeUnderTest) -> NodeUnderTest:
    """Nobody has given the members back."""
    return tested.feed(Applied("round", False)).later(PATIENCE)


def _members(*names: str, **fields: object) -> list[NodeRecord]:
    """Members that have left the round, and say where they were."""
    return [back(name, 3, rank=NAMES.index(name), **fields) for name in names]


def _leaves(tested: NodeUnderTest) -> None:
    """The leader's own workers have left the round."""
    tested.feed(LeftRound(3, FaultReport(3, records.PLANNED, "told to")))
    tested.changes(tested.own)


def test_those_who_may_keep_the_members_are_asked_first() -> None:
    tested = leader_without_parts(*map(node, "cdef"))
    (asked,) = tested.told(Waiting)
    assert asked.reason == "the members of round 3 are gone from the store"
    assert tested.written(RoundRecord) is not None
    assert tested.transaction(records.SWITCH) is None
    tested.later(PATIENCE / 2)
    assert tested.transaction(records.SWITCH) is None


def test_then_all_are_asked_to_leave_at_a_step_boundary_and_are_told_why() -> None:
    tested = _patient(leader_without_parts(*map(node, "acdef")))
    order = tested.wrote(SwitchRecord)
    assert (order.round, order.broken, order.roll) == (3, False, True)
    assert order.reason.startswith("the store has lost the members of round 3, and no node knows")


_FAILED = back("c", 3, FaultReport(3, records.FAILED, "ValueError: x"), rank=2)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([*map(node, "cde")], "2 of the 6 nodes of round 3 are gone"),
        ([*map(node, "adef"), _FAILED], "ValueError: x on c"),
    ],
)
def test_where_nodes_are_gone_or_have_failed_nobody_waits_for_a_step_boundary(
    others: list[NodeRecord], reason: str
) -> None:
    order = _patient(leader_without_parts(*others)).wrote(SwitchRecord)
    assert order.broken
    assert reason in order.reason


def test_a_round_that_broke_before_stays_broken_for_the_same_reason() -> None:
    tested = leader_without_parts(*map(node, "cdef")).changes(switch(3, broken=True))
    order = _patient(tested).wrote(SwitchRecord)
    assert order == replace(switch(3, broken=True), roll=True)


def test_the_next_round_holds_who_has_said_where_it_was_in_the_same_order() -> None:
    tested = _patient(leader_without_parts(*map(node, "acdef"))).changes(ROLL)
    assert tested.told(Sealed) == []
    tested.changes(*_members(*"fedca"))
    assert tested.members() == []
    _leaves(tested)
    written = tested.wrote(RoundRecord)
    assert (written.number, written.survivors, written.nodes) == (4, 6, 6)
    (parts,) = [action.first for action in tested.actions if isinstance(action, ApplyTransaction)]
    entries = [StoreEntry(put.key, put.value, 1, 1) for one in parts for put in one.puts]
    assert [member.node for member in all_members(written, entries).members] == [*NAMES]
    assert written.budget.failures == 0


@pytest.mark.parametrize("late", [False, True])
def test_who_was_in_no_place_is_a_newcomer_and_who_says_nothing_is_waited_for(late: bool) -> None:
    tested = _patient(leader_without_parts(*map(node, "acdefx")))
    _leaves(tested.changes(ROLL, *_members(*"acde"), back("x", 3)))
    assert tested.members() == []
    if late:
        tested.later(PARTED.timeouts.rejoin_timeout)
    else:
        tested.changes(*_members("f"))
    written = tested.wrote(RoundRecord)
    assert (written.size, written.survivors) == (6, 5 if late else 6)


@pytest.mark.parametrize(("order", "left"), [(ROLL, 3), (switch(3, broken=True), 0)])
def test_a_node_that_was_in_no_round_says_so_when_it_is_asked(
    order: SwitchRecord, left: int
) -> None:
    shown = job(high=6), node("b"), node("x"), HEAD, order
    tested = NodeUnderTest("x", PARTED).sees(*shown, wide=False)
    assert (tested.own.left, tested.own.rank) == (left, -1)


def test_where_no_member_is_left_they_may_train_out_of_sight() -> None:
    tested = _patient(leader_without_parts(name="x")).changes(replace(ROLL, broken=True))
    (waits,) = tested.told(Waiting)
    assert "they may train" in waits.reason
    tested.changes(tested.own)
    assert tested.transaction("job") is None
    reach = replace(tested.state.reach, dead={"a": "refused", "b": "refused"})
    tested.state = replace(tested.state, reach=reach)
    tested.later(PARTED.timeouts.fence_timeout + 0.1)
    assert tested.transaction("job") is not None


def test_a_job_whose_nodes_are_all_done_is_over() -> None:
    well = [node(n, status=records.DONE, incarnation=LIFE, done_round=3) for n in NAMES]
    tested = leader_without_parts(*well[2:], well[0]).wants(well[1])
    assert _patient(tested.changes(well[1])).wrote(OutcomeRecord).succeeded


@pytest.mark.parametrize("end", [{"status": records.DONE, "done_round": 3}, {"returned": 3}])
def test_the_end_of_some_is_no_reason_to_begin_again(end: dict[str, Any]) -> None:
    well = node("c", incarnation=LIFE, **end)
    tested = _patient(leader_without_parts(*map(node, "adef"), well))
    assert tested.transaction(records.SWITCH) is None


def test_nothing_is_lost_if_the_members_come_back_meanwhile() -> None:
    tested = leader_without_parts(*map(node, "acdef")).later(1.0)
    entries = tested._entries((sealed(3, *NAMES, group=HEAD.group, parts=HEAD.parts),))
    _patient(tested.feed(Changed(entries)))
    assert tested.transaction(records.SWITCH) is None
    assert Timer.ROLL_CALL not in tested.state.timers


def test_who_knows_only_some_of_them_gives_the_round_back_after_those_who_know_all() -> None:
    tested = NodeUnderTest("b", PARTED).sees(job(high=6), node("a"), node("b"), HEAD, wide=False)
    assert tested.sees(wide=False, forgot=True).written(RoundRecord) is None
    assert tested.later(PARTED.settle).wrote(RoundRecord) == HEAD
