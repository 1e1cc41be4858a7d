"""A round of which nobody has all members any more: what its leader does, decision by decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.protocol.records import (
    DONE,
    FAILED,
    PLANNED,
    SWITCH,
    FaultReport,
    NodeRecord,
    OutcomeRecord,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction
from elastic_runtime.rendezvous.core.membership_events import Applied, LeftRound, PartsGone, Tick
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.notices import Sealed, Waiting
from elastic_runtime.rendezvous.core.round_parts import all_members, split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.store_contract import Changed, StoreEntry
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

NAMES = "abcdef"
LAYOUT = Layout(most=2, part=2, first=2, keepers=2)
PARTED = replace(POLICY, layout=LAYOUT, max_nodes=6)
# Those who may keep the members are waited for twice as long as an absent key proves nothing.
PATIENCE = 2 * PARTED.settle + 0.1
ROLL = replace(switch(3, broken=False), roll=True)


def _head() -> RoundRecord:
    return split_round(sealed(3, *NAMES), LAYOUT)[0]


def _leader(*others: NodeRecord, name: str = "b") -> NodeUnderTest:
    """The oldest node that lives: it knows the first members only, and the parts are gone."""
    tested = NodeUnderTest(name, PARTED)
    tested.sees(job(high=6), node(name), *others, _head()).settle()
    return tested.feed(PartsGone(tested.state.shown.round.version))


def _patient(tested: NodeUnderTest) -> NodeUnderTest:
    """Nobody has given the members back."""
    return tested.feed(Applied("round", False)).feed(Tick(), PATIENCE)


def _members(*names: str, **fields: object) -> list[NodeRecord]:
    """Members that have left the round, and say where they were."""
    return [back(name, 3, rank=NAMES.index(name), **fields) for name in names]


def _leaves(tested: NodeUnderTest) -> None:
    """The leader's own workers have left the round."""
    tested.feed(LeftRound(3, FaultReport(3, PLANNED, "told to")))
    assert tested.state.own.record is not None
    tested.changes(tested.state.own.record)


def test_those_who_may_keep_the_members_are_asked_first() -> None:
    tested = _leader(*map(node, "cdef"))
    (asked,) = tested.told(Waiting)
    assert asked.reason == "the members of round 3 are gone from the store"
    assert tested.written(RoundRecord, "round") is not None
    assert tested.transaction(SWITCH) is None
    tested.feed(Tick(), PATIENCE / 2)
    assert tested.transaction(SWITCH) is None


def test_then_all_are_asked_to_leave_at_a_step_boundary_and_are_told_why() -> None:
    tested = _patient(_leader(*map(node, "acdef")))
    order = tested.written(SwitchRecord, SWITCH)
    assert order is not None
    assert (order.round, order.broken, order.roll) == (3, False, True)
    assert (
        order.reason == "the store has lost the members of round 3, and no node knows all of them"
    )


def test_where_nodes_are_gone_nobody_waits_for_a_step_boundary() -> None:
    tested = _patient(_leader(*map(node, "cde")))
    order = tested.written(SwitchRecord, SWITCH)
    assert order is not None
    assert order.broken
    assert "2 of the 6 nodes of round 3 are gone" in order.reason


def test_a_member_that_has_failed_breaks_the_round() -> None:
    failed = back("c", 3, FaultReport(3, FAILED, "ValueError: x"), rank=2)
    tested = _patient(_leader(*map(node, "adef"), failed))
    order = tested.written(SwitchRecord, SWITCH)
    assert order is not None
    assert order.broken
    assert "ValueError: x on c" in order.reason


def test_a_round_that_broke_before_stays_broken_for_the_same_reason() -> None:
    tested = _leader(*map(node, "cdef"))
    _patient(tested.changes(switch(3, broken=True)))
    order = tested.written(SwitchRecord, SWITCH)
    assert order == replace(switch(3, broken=True), roll=True)


def test_the_next_round_holds_who_has_said_where_it_was_in_the_same_order() -> None:
    tested = _patient(_leader(*map(node, "acdef")))
    tested.changes(ROLL)
    assert tested.told(Sealed) == []
    tested.changes(*_members(*"fedca"))
    assert tested.members() == []
    _leaves(tested)
    written = tested.written(RoundRecord, "round")
    assert written is not None
    assert (written.number, written.survivors, written.nodes) == (4, 6, 6)
    (parts,) = [action.first for action in tested.actions if isinstance(action, ApplyTransaction)]
    entries = [StoreEntry(put.key, put.value, 1, 1) for one in parts for put in one.puts]
    assert [member.node for member in all_members(written, entries).members] == [*NAMES]
    assert written.budget.failures == 0


@pytest.mark.parametrize("late", [False, True])
def test_who_was_in_no_place_is_a_newcomer_and_who_says_nothing_is_waited_for(late: bool) -> None:
    tested = _patient(_leader(*map(node, "acdefx")))
    _leaves(tested.changes(ROLL, *_members(*"acde"), back("x", 3)))
    assert tested.members() == []
    if late:
        tested.feed(Tick(), PARTED.timeouts.rejoin_timeout)
    else:
        tested.changes(*_members("f"))
    written = tested.written(RoundRecord, "round")
    assert written is not None
    assert (written.size, written.survivors) == (6, 5 if late else 6)


def test_a_node_that_was_in_no_round_says_so_when_it_is_asked() -> None:
    tested = NodeUnderTest("x", PARTED).sees(
        job(high=6), node("b"), node("x"), _head(), ROLL, wide=False
    )
    assert tested.state.own.record is not None
    assert (tested.state.own.record.left, tested.state.own.record.rank) == (3, -1)
    other = NodeUnderTest("x", PARTED)
    other.sees(job(high=6), node("b"), node("x"), _head(), switch(3, broken=True), wide=False)
    assert other.state.own.record is not None
    assert other.state.own.record.left == 0


def test_where_no_member_is_left_they_may_train_out_of_sight() -> None:
    tested = _patient(_leader(name="x")).changes(replace(ROLL, broken=True))
    (waits,) = tested.told(Waiting)
    assert "they may train" in waits.reason
    assert tested.state.own.record is not None
    tested.changes(tested.state.own.record)
    assert tested.transaction("job") is None
    reach = replace(tested.state.reach, dead={"a": "refused", "b": "refused"})
    tested.state = replace(tested.state, reach=reach)
    tested.feed(Tick(), PARTED.timeouts.fence_timeout + 0.1)
    assert tested.transaction("job") is not None


def test_a_job_whose_nodes_are_all_done_is_over() -> None:
    well = [node(n, status=DONE, incarnation=LIFE, done_round=3) for n in "abcdef"]
    tested = _leader(*well[2:], well[0])
    tested.wants(well[1])
    _patient(tested.changes(well[1]))
    outcome = tested.written(OutcomeRecord, "outcome")
    assert outcome is not None
    assert outcome.succeeded


@pytest.mark.parametrize("end", [{"status": DONE, "done_round": 3}, {"returned": 3}])
def test_the_end_of_some_is_no_reason_to_begin_again(end: dict[str, Any]) -> None:
    well = node("c", incarnation=LIFE, **end)
    tested = _patient(_leader(*map(node, "adef"), well))
    assert tested.transaction(SWITCH) is None


def test_nothing_is_lost_if_the_members_come_back_meanwhile() -> None:
    tested = _leader(*map(node, "acdef")).feed(Tick(), 1.0)
    entries = tested._entries((sealed(3, *NAMES, group=_head().group, parts=_head().parts),))
    _patient(tested.feed(Changed(entries)))
    assert tested.transaction(SWITCH) is None
    assert Timer.ROLL_CALL not in tested.state.timers
