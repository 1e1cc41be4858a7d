"""What is known of the members of the last round: their status, their parts, and a roll call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport, NodeRecord, OutcomeRecord, SwitchRecord
from elastic_runtime.protocol.round_records import RoundRecord
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
    echo = FaultReport(3, "failed", "lost the connection to a peer", consequence=True)
    tested = NodeUnderTest("a").wants(back("a", 3, echo))
    member = node("b", incarnation=LIFE, status=status)
    tested.sees(job(), LAST, switch(3, broken=True), back("a", 3, echo), member).settle()
    tested.later(POLICY.probe_after).probed("b", REFUSED, 0.001)
    record = tested.wrote(RoundRecord)
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
