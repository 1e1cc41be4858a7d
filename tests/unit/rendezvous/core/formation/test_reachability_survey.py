"""A round that broke for want of a reason: members say whom they reach, the leader seals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import (
    CUT_OFF,
    FAILED,
    HANGS,
    KILLED,
    LOST,
    ROUND,
    SWITCH,
    Budget,
    FaultReport,
    NodeRecord,
    RoundRecord,
    SwitchRecord,
)
from elastic_runtime.rendezvous.core.events import (
    ALIVE,
    BUSY,
    REFUSED,
    SILENT,
    LookForMembers,
    Probed,
    Tick,
)
from elastic_runtime.rendezvous.core.node_state import OWN
from elastic_runtime.rendezvous.core.notices import Surveyed, Waiting
from tests.unit.rendezvous.seat import POLICY, Seat, back, job, node, sealed, switch

ECHO = FaultReport(3, FAILED, "connection reset", consequence=True, step=9)
HANG = FaultReport(3, FAILED, "no step for 60 s", signature=HANGS, step=9)
CUT = FaultReport(3, LOST, "a does not reach c", signature=CUT_OFF, consequence=True, step=9)
KILL = FaultReport(3, KILLED, "worker 1 was killed", step=9)


def _leader(
    *others: NodeRecord, asked: bool = False, fault: FaultReport = ECHO, **own: object
) -> Seat:
    """Node a leads; round 3 (a, b, c) is broken."""
    seat = Seat()
    seat.state = replace(seat.state, record=back("a", 3, fault, **own))
    last = sealed(3, "a", "b", "c", budget=Budget(best_step=5))
    order = switch(3, broken=True, survey=asked)
    assert seat.state.record is not None
    return seat.sees(job(), last, order, seat.state.record, *others)


@pytest.mark.parametrize("fault", [ECHO, HANG, CUT])
def test_without_a_reason_the_leader_asks_whom_they_reach(fault: FaultReport) -> None:
    seat = _leader(back("b", 3), back("c", 3), fault=fault)
    order = seat.written(SwitchRecord, SWITCH)
    assert order is not None
    assert order.survey
    assert order.broken
    assert not seat.members()


def test_a_round_with_a_reason_is_not_held_up() -> None:
    assert _leader(back("b", 3, KILL), back("c", 3, ECHO)).members() == ["a", "b", "c"]


def _checked(name: str, *missed: str, fault: FaultReport = ECHO) -> NodeRecord:
    return back(name, 3, fault, checked=3, unreachable=missed)


def test_the_largest_part_goes_on_and_nothing_is_counted() -> None:
    seat = _leader(_checked("b"), asked=True, checked=3, unreachable=("c",))
    assert not seat.members(), "c has not said anything yet"
    seat.changes(_checked("c", "a"))
    assert seat.members() == ["a", "b"]
    record = seat.written(RoundRecord, ROUND)
    assert record is not None
    assert record.reason == "no connection between a and c"
    assert (record.budget.failures, record.budget.fruitless, record.budget.lost) == (0, 0, 1)


def test_a_cut_counts_for_nothing_however_often_it_breaks_a_round() -> None:
    seat = Seat()
    seat.state = replace(seat.state, record=back("a", 3, HANG, checked=3, unreachable=("c",)))
    spent = Budget(failures=3, fruitless=4, best_step=99)
    last = sealed(3, "a", "b", "c", budget=spent)
    order = switch(3, broken=True, survey=True)
    assert seat.state.record is not None
    seat.sees(job(), last, order, seat.state.record, _checked("b"), _checked("c", "a"))
    record = seat.written(RoundRecord, ROUND)
    assert record is not None
    assert record.budget == replace(spent, lost=1)


def test_a_hang_of_members_that_all_reach_each_other_is_one() -> None:
    seat = _leader(_checked("b"), _checked("c"), asked=True, fault=HANG, checked=3)
    record = seat.written(RoundRecord, ROUND)
    assert record is not None
    assert record.budget.failures == 1


def test_who_says_nothing_in_time_is_left_out() -> None:
    seat = _leader(_checked("b"), back("c", 3), asked=True, checked=3)
    assert seat.feed(Tick(), POLICY.check).members() == ["a", "b"]


def test_where_too_few_reach_each_other_it_is_said_who_does_not() -> None:
    seat = Seat()
    missed = {"b": sealed(3, "b").members[0]}
    own = back("a", 3, ECHO, checked=3, unreachable=("b",))
    seat.state = replace(seat.state, record=own, missed=missed, answers={"b": SILENT})
    assert seat.state.record is not None
    order = switch(3, broken=True, survey=True)
    seat.sees(job(2, 2), sealed(3, "a", "b"), order, seat.state.record, _checked("b", "a"))
    (waiting,) = seat.told(Waiting)
    assert waiting.reason == "waiting for at least 2 nodes: no connection between a and b"
    written = seat.feed(Probed("b", ALIVE), 0.01).written(NodeRecord, OWN)
    assert written is not None
    assert not written.unreachable
    seat.changes(written, _checked("b"))
    assert seat.members() == ["a", "b"]


# ---------------------------------------------------------------- a member


def _member(**fields: object) -> Seat:
    """Node b, a member of round 3 (a, b, c) that it has left."""
    seat = Seat("b")
    seat.state = replace(seat.state, record=back("b", 3, ECHO, **fields))
    assert seat.state.record is not None
    order = switch(3, broken=True, survey=True)
    last, lead = sealed(3, "a", "b", "c"), back("a", 3, ECHO)
    return seat.sees(job(), last, order, lead, seat.state.record, wide=False)


def test_a_member_that_is_asked_probes_the_others_and_says_whom_it_misses() -> None:
    seat = _member()
    assert sorted(seat.probes()) == ["a", "c"]
    seat.feed(Probed("a", ALIVE), 0.01).feed(Probed("c", SILENT), 0.5)
    assert seat.transaction(OWN) is None, "one silence may be an accident"
    assert "c" in seat.probes()
    seat.feed(Probed("c", SILENT), 0.5)
    written = seat.written(NodeRecord, OWN)
    assert written is not None
    assert (written.checked, written.unreachable) == (3, ("c",))


def test_a_silence_that_was_an_accident_is_no_cut() -> None:
    seat = _member()
    seat.feed(Probed("a", ALIVE), 0.01).feed(Probed("c", SILENT), 0.5).feed(Probed("c", ALIVE), 0.2)
    written = seat.written(NodeRecord, OWN)
    assert written is not None
    assert (written.checked, written.unreachable) == (3, ())


def test_the_dead_are_not_out_of_reach() -> None:
    seat = _member()
    seat.feed(Probed("a", ALIVE), 0.01).feed(Probed("c", REFUSED), 0.01)
    assert seat.state.record is not None
    assert (seat.state.record.checked, seat.state.record.unreachable) == (3, ())


def test_whom_it_has_missed_it_looks_for_until_they_are_there() -> None:
    seat = _member()
    seat.feed(Probed("a", ALIVE), 0.01).feed(Probed("c", SILENT), 0.5)
    written = seat.feed(Probed("c", SILENT), 0.5).written(NodeRecord, OWN)
    assert written is not None
    seat.changes(written)
    assert "c" in seat.feed(Tick(), 1.0).probes()
    assert "c" not in seat.feed(Tick(), 1.0).probes(), "one of a node at a time"
    seat.feed(Probed("c", ALIVE), 0.1)
    written = seat.written(NodeRecord, OWN)
    assert written is not None
    assert not written.unreachable


def test_who_was_left_out_looks_for_the_members_of_the_round_that_runs() -> None:
    seat = _member(checked=3, unreachable=("a",))
    seat.changes(sealed(4, "a", "c"), gone=("switch",))
    assert sorted(seat.probes()) == ["a", "c"]
    seat.feed(Probed("a", ALIVE), 0.01).feed(Probed("c", ALIVE), 0.01)
    written = seat.written(NodeRecord, OWN)
    assert written is not None
    assert (written.checked, written.unreachable) == (4, ())


@pytest.mark.parametrize("answer", [ALIVE, BUSY, SILENT])
def test_an_agent_hears_whether_the_others_are_in_reach(answer: str) -> None:
    seat = Seat("b")
    assert seat.state.record is not None
    seat.sees(job(), sealed(3, "a", "b"), node("a"), seat.state.record, wide=False)
    assert seat.feed(Tick()).probes() == [], "a round that runs is not disturbed"
    assert seat.feed(LookForMembers(3)).probes() == ["a"]
    seat.feed(Probed("a", answer), 0.5)
    if answer == SILENT:
        seat.feed(Probed("a", answer), 0.5)
    (found,) = seat.told(Surveyed)
    missed, busy = (("a",) if answer == one else () for one in (SILENT, BUSY))
    assert found == Surveyed(3, missed, busy)


# ---------------------------------------------------------------- joiners


@pytest.mark.parametrize(
    ("newcomer", "reason"), [(node("c"), "node c joins"), (back("c", 3), "node c is back")]
)
def test_nobody_is_let_in_who_does_not_reach_a_member(newcomer: NodeRecord, reason: str) -> None:
    seat = Seat()
    assert seat.state.record is not None
    apart = replace(newcomer, checked=4, unreachable=("a",))
    seat.sees(job(), sealed(4, "a", "b"), seat.state.record, back("b", 3), apart).settle()
    assert seat.feed(Tick(), 60.0).transaction(SWITCH) is None
    order = seat.changes(replace(apart, unreachable=())).written(SwitchRecord, SWITCH)
    assert order is not None
    assert order.reason == reason
