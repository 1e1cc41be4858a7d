"""Which node leads, and what is known of each member of the last round."""

from __future__ import annotations

import pytest

from elastic_runtime.protocol.records import (
    DONE,
    GONE,
    IN,
    LEAVING,
    PLANNED,
    ROUND,
    FaultReport,
    NodeRecord,
)
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.formation.member_status import (
    MemberStatus,
    accompanied,
    alone,
    fault_of_member,
    last_round,
    leader_of,
    loss_message,
)
from elastic_runtime.rendezvous.core.membership_events import REFUSED, Probed, Tick
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
        (back("b", 3, status=GONE), MemberStatus.LEFT),
        (node("b", incarnation=LIFE, status=GONE), MemberStatus.LEFT),
        (node("b", incarnation=LIFE, status=DONE, done_round=3), MemberStatus.ENDED_WELL),
        (node("b", incarnation=LIFE, status=GONE, done_round=3), MemberStatus.ENDED_WELL),
        (node("b", incarnation=LIFE, status=DONE, done_round=2), MemberStatus.RUNNING),
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
    first = leader_of(tested.state)
    assert first is not None and first.record.node == "c"
    tested.changes(node("c", status=GONE))
    second = leader_of(tested.state)
    assert second is not None and second.record.node == "a"
    tested.changes(gone=("nodes/a",))
    assert leader_of(tested.state) is None


def test_who_is_alone_and_who_has_company() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    assert alone(tested.state) and not accompanied(tested.state)
    tested.changes(node("b"))
    assert not alone(tested.state) and accompanied(tested.state)
    unseen = NodeUnderTest("a").sees(job(), node("a"), wide=False)
    assert not alone(unseen.state), "others may be there, which it has not asked for"


def test_a_report_of_an_earlier_round_is_no_reason() -> None:
    fault = FaultReport(3, "failed", "an error")
    assert fault_of_member(seen_by_a(back("b", 3, fault)).state, B, LAST) == fault
    assert (
        fault_of_member(seen_by_a(back("b", 3, FaultReport(2, "failed", "x"))).state, B, LAST)
        is None
    )


@pytest.mark.parametrize(
    ("status", "lost", "reason"),
    [
        (IN, 1, "node b lost: its port refuses"),
        (LEAVING, 0, "node b was asked to leave"),  # its goodbye is on its way
    ],
)
def test_who_was_asked_to_leave_and_whose_port_refuses_has_left(
    status: str, lost: int, reason: str
) -> None:
    echo = FaultReport(3, "failed", "lost the connection to a peer", consequence=True)
    tested = NodeUnderTest("a").wants(back("a", 3, echo))
    member = node("b", incarnation=LIFE, status=status)
    tested.sees(job(), LAST, switch(3, broken=True), back("a", 3, echo), member).settle()
    tested.feed(Tick(), POLICY.probe_after).feed(Probed("b", REFUSED), 0.001)
    record = tested.written(RoundRecord, ROUND)
    assert record is not None
    assert (record.budget.lost, record.budget.planned) == (lost, 1 - lost)
    assert record.reason == reason
    assert tested.members() == ["a"]


def test_a_goodbye_counts_more_than_a_port_that_refuses() -> None:
    tested = seen_by_a(node("b", incarnation=LIFE)).feed(Probed("b", REFUSED))
    assert status_of_b(tested) is MemberStatus.DEAD
    tested.changes(back("b", 3, FaultReport(3, PLANNED, "told to"), status=GONE))
    assert status_of_b(tested) is MemberStatus.LEFT
