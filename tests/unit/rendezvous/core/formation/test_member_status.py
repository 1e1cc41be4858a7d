"""Which node leads, and what is known of each member of the last round."""

from __future__ import annotations

import pytest

from elastic_runtime.protocol.records import DONE, GONE, FaultReport, NodeRecord
from elastic_runtime.rendezvous.core.formation.member_status import (
    MemberStatus,
    accompanied,
    alone,
    fault_of_member,
    last_round,
    leader_of,
    loss_message,
)
from tests.unit.rendezvous.node_under_test import LIFE, NodeUnderTest, back, job, node, sealed

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
