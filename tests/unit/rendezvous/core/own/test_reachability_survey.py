"""A round that broke for want of a reason: members say whom they reach, the leader seals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.protocol.records import (
    CUT_OFF,
    FAILED,
    HANGS,
    KILLED,
    LOST,
    SWITCH,
    FaultReport,
    NodeRecord,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import Budget, RoundRecord
from elastic_runtime.rendezvous.core.membership_events import (
    ALIVE,
    BUSY,
    REFUSED,
    SILENT,
    LookForMembers,
)
from elastic_runtime.rendezvous.core.node_state import OWN
from elastic_runtime.rendezvous.core.notices import Surveyed, Waiting
from tests.unit.rendezvous.node_under_test import (
    POLICY,
    NodeUnderTest,
    back,
    job,
    node,
    sealed,
    switch,
)

AT_STEP_5 = Budget(best_step=5)
ECHO = FaultReport(3, FAILED, "connection reset", consequence=True, step=9)
HANG = FaultReport(3, FAILED, "no step for 60 s", signature=HANGS, step=9)
CUT = FaultReport(3, LOST, "a does not reach c", signature=CUT_OFF, consequence=True, step=9)
KILL = FaultReport(3, KILLED, "worker 1 was killed", step=9)


def _leader(
    *others: NodeRecord,
    asked: bool = False,
    fault: FaultReport = ECHO,
    budget: Budget = AT_STEP_5,
    **own: object,
) -> NodeUnderTest:
    """Node a leads; round 3 (a, b, c) is broken."""
    tested = NodeUnderTest().wants(back("a", 3, fault, **own))
    last = sealed(3, "a", "b", "c", budget=budget)
    order = switch(3, broken=True, survey=asked)
    return tested.sees(job(), last, order, tested.own, *others)


@pytest.mark.parametrize("fault", [ECHO, HANG, CUT])
def test_without_a_reason_the_leader_asks_whom_they_reach(fault: FaultReport) -> None:
    tested = _leader(back("b", 3), back("c", 3), fault=fault)
    order = tested.wrote(SwitchRecord)
    assert order.survey
    assert order.broken
    assert not tested.members()


def test_a_round_with_a_reason_is_not_held_up() -> None:
    assert _leader(back("b", 3, KILL), back("c", 3, ECHO)).members() == ["a", "b", "c"]


def _checked(name: str, *missed: str, fault: FaultReport = ECHO) -> NodeRecord:
    return back(name, 3, fault, checked=3, unreachable=missed)


def test_the_largest_part_goes_on_and_nothing_is_counted() -> None:
    tested = _leader(_checked("b"), asked=True, checked=3, unreachable=("c",))
    assert not tested.members(), "c has not said anything yet"
    tested.changes(_checked("c", "a"))
    assert tested.members() == ["a", "b"]
    record = tested.wrote(RoundRecord)
    assert record.reason == "no connection between a and c"
    assert (record.budget.failures, record.budget.fruitless, record.budget.lost) == (0, 0, 1)


def test_a_cut_counts_for_nothing_however_often_it_breaks_a_round() -> None:
    spent = Budget(failures=3, fruitless=4, best_step=99)
    cut: dict[str, Any] = {"checked": 3, "unreachable": ("c",)}
    others = _checked("b"), _checked("c", "a")
    tested = _leader(*others, asked=True, fault=HANG, budget=spent, **cut)
    assert tested.wrote(RoundRecord).budget == replace(spent, lost=1)


def test_a_hang_of_members_that_all_reach_each_other_is_one() -> None:
    tested = _leader(_checked("b"), _checked("c"), asked=True, fault=HANG, checked=3)
    assert tested.wrote(RoundRecord).budget.failures == 1


def test_who_says_nothing_in_time_is_left_out() -> None:
    tested = _leader(_checked("b"), back("c", 3), asked=True, checked=3)
    assert tested.later(POLICY.survey_timeout).members() == ["a", "b"]


def test_where_too_few_reach_each_other_it_is_said_who_does_not() -> None:
    tested = NodeUnderTest().wants(back("a", 3, ECHO, checked=3, unreachable=("b",)))
    missed = {"b": sealed(3, "b").members[0]}
    reach = replace(tested.state.reach, missed=missed, answers={"b": SILENT})
    tested.state = replace(tested.state, reach=reach)
    order = switch(3, broken=True, survey=True)
    tested.sees(job(2, 2), sealed(3, "a", "b"), order, tested.own, _checked("b", "a"))
    (waiting,) = tested.told(Waiting)
    assert waiting.reason == "waiting for at least 2 nodes: no connection between a and b"
    written = tested.probed("b", ALIVE, 0.01).wrote(NodeRecord)
    assert not written.unreachable
    assert tested.changes(written, _checked("b")).members() == ["a", "b"]


# ---------------------------------------------------------------- a member


def _member(**fields: object) -> NodeUnderTest:
    """Node b, a member of round 3 (a, b, c) that it has left."""
    tested = NodeUnderTest("b").wants(back("b", 3, ECHO, **fields))
    order = switch(3, broken=True, survey=True)
    last, lead = sealed(3, "a", "b", "c"), back("a", 3, ECHO)
    return tested.sees(job(), last, order, lead, tested.own, wide=False)


def test_a_member_that_is_asked_probes_the_others_and_says_whom_it_misses() -> None:
    tested = _member()
    assert sorted(tested.probes()) == ["a", "c"]
    tested.probed("a", ALIVE, 0.01).probed("c", SILENT, 0.5)
    assert tested.transaction(OWN) is None, "one silence may be an accident"
    assert "c" in tested.probes()
    tested.probed("c", SILENT, 0.5)
    written = tested.wrote(NodeRecord)
    assert (written.checked, written.unreachable) == (3, ("c",))


@pytest.mark.parametrize("answers", [(SILENT, ALIVE), (REFUSED,)], ids=["an accident", "dead"])
def test_a_silence_that_was_an_accident_is_no_cut_and_the_dead_are_not_out_of_reach(
    answers: tuple[str, ...],
) -> None:
    tested = _member().probed("a", ALIVE, 0.01)
    for answer in answers:
        tested.probed("c", answer, 0.2)
    assert (tested.own.checked, tested.own.unreachable) == (3, ())


def test_whom_it_has_missed_it_looks_for_until_they_are_there() -> None:
    tested = _member().probed("a", ALIVE, 0.01).probed("c", SILENT, 0.5)
    written = tested.probed("c", SILENT, 0.5).wrote(NodeRecord)
    tested.changes(written)
    assert "c" in tested.later(1.0).probes()
    assert "c" not in tested.later(1.0).probes(), "one of a node at a time"
    tested.probed("c", ALIVE, 0.1)
    assert not tested.wrote(NodeRecord).unreachable


def test_who_was_left_out_looks_for_the_members_of_the_round_that_runs() -> None:
    tested = _member(checked=3, unreachable=("a",)).changes(sealed(4, "a", "c"), gone=("switch",))
    assert sorted(tested.probes()) == ["a", "c"]
    tested.probed("a", ALIVE, 0.01).probed("c", ALIVE, 0.01)
    written = tested.wrote(NodeRecord)
    assert (written.checked, written.unreachable) == (4, ())


@pytest.mark.parametrize("answer", [ALIVE, BUSY, SILENT])
def test_an_agent_hears_whether_the_others_are_in_reach(answer: str) -> None:
    tested = NodeUnderTest("b")
    tested.sees(job(), sealed(3, "a", "b"), node("a"), tested.own, wide=False)
    assert tested.later().probes() == [], "a round that runs is not disturbed"
    assert tested.feed(LookForMembers(3)).probes() == ["a"]
    tested.probed("a", answer, 0.5)
    if answer == SILENT:
        tested.probed("a", answer, 0.5)
    (found,) = tested.told(Surveyed)
    missed, busy = (("a",) if answer == one else () for one in (SILENT, BUSY))
    assert found == Surveyed(3, missed, busy)


# ---------------------------------------------------------------- joiners


@pytest.mark.parametrize(
    ("newcomer", "reason"), [(node("c"), "node c joins"), (back("c", 3), "node c is back")]
)
def test_nobody_is_let_in_who_does_not_reach_a_member(newcomer: NodeRecord, reason: str) -> None:
    tested = NodeUnderTest()
    apart = replace(newcomer, checked=4, unreachable=("a",))
    tested.sees(job(), sealed(4, "a", "b"), tested.own, back("b", 3), apart).settle()
    assert tested.later(60.0).transaction(SWITCH) is None
    assert tested.changes(replace(apart, unreachable=())).wrote(SwitchRecord).reason == reason
