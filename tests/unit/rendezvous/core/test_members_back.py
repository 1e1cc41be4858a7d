"""When nodes and workers that are back are taken in: at once, if no other is to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import (
    ASKED,
    DONE,
    GONE,
    IN,
    LEAVING,
    FaultReport,
    NodeRecord,
    OutcomeRecord,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import Member
from elastic_runtime.rendezvous.core.formation.member_status import has_returned
from elastic_runtime.rendezvous.core.membership_events import TrainReturned
from tests.unit.rendezvous.node_under_test import (
    LIFE,
    POLICY,
    NodeUnderTest,
    back,
    job,
    member,
    node,
    sealed,
)


@pytest.mark.parametrize(
    ("waits", "newcomer", "others"),
    [
        (False, back("b", 2, full=1), ()),
        (True, back("b", 2), ()),  # of an older version, which does not say how many it has
        (True, back("b", 2, full=2), ()),  # another of its workers is to come
        (True, back("b", 2, full=1), (back("c", 2, full=1, workers=0),)),
        (True, node("b", full=1), ()),  # where a new node comes, others often do
    ],
)
def test_a_node_that_is_back_is_taken_in_at_once_if_no_other_is_to_come(
    waits: bool, newcomer: NodeRecord, others: tuple[NodeRecord, ...]
) -> None:
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True)).wants(node("a", full=1))
    tested.sees(job(in_place=True), sealed(3, "a"), node("a", full=1), *others)
    tested.changes(newcomer)
    assert bool(tested.written(SwitchRecord)) is not waits
    tested.later(2 * POLICY.join_batch_in_place)
    assert bool(tested.written(SwitchRecord)) is waits


@pytest.mark.parametrize(("now", "waits"), [(3, False), (2, True)])
def test_a_worker_that_is_back_is_taken_in_at_once_if_no_other_is_to_come(
    now: int, waits: bool
) -> None:
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True)).wants(node("a", full=1))
    two = replace(sealed(3, "a", "b"), members=(with_workers("a", 1), with_workers("b", 1)))
    tested.sees(job(in_place=True), two, node("a", full=1), node("b", full=3))
    tested.changes(node("b", full=3, workers=now))
    assert bool(tested.written(SwitchRecord)) is not waits
    tested.later(2 * POLICY.join_batch_in_place)
    assert bool(tested.written(SwitchRecord)) is waits


@pytest.mark.parametrize("of_now", [True, False])
def test_nobody_is_taken_in_where_training_is_over(of_now: bool) -> None:
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    over = node("b", full=1, incarnation=LIFE, returned=3 if of_now else 2)
    tested.wants(node("a", full=1))
    tested.sees(job(in_place=True), sealed(3, "a", "b"), node("a", full=1), over)
    tested.changes(back("c", 2, full=1))
    order = tested.written(SwitchRecord)
    assert (order is None) is of_now
    assert order is None or order.grows


def test_the_end_of_what_follows_the_training_is_waited_for() -> None:
    """The order to take a node in was written while ``train`` returned."""
    tested = ordered_too_late()
    for _ in range(3):  # the second time, as nobody has come back
        tested.later(100 * POLICY.timeouts.rejoin_timeout)
        assert not tested.members()
    tested.wants(done("a")).changes(done("a"), done("b"))
    assert tested.wrote(OutcomeRecord).succeeded


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("goes", [True, False])
def test_those_that_do_not_obey_are_told_that_another_one_has_left(ended: bool, goes: bool) -> None:
    tested = ordered_too_late()
    asked = FaultReport(3, ASKED, "the node was asked to leave")
    other = back("b", 3, asked if goes else None, workers=0, status=GONE if goes else IN)
    if ended:
        tested.wants(done("a")).changes(done("a"))
    tested.changes(other)
    order = tested.wrote(SwitchRecord)
    assert order.broken
    assert order.reason == "node b left before its script had ended"


def test_under_another_order_those_who_leave_have_their_time() -> None:
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    order = SwitchRecord(3, LIFE, broken=False, reason="node b was asked to leave")
    asked = FaultReport(3, ASKED, "the node was asked to leave")
    others = back("b", 3, asked, status=GONE), done("c")
    tested.wants(node("a", full=1))
    tested.sees(job(in_place=True), sealed(3, "a", "b", "c"), order, node("a", full=1), *others)
    assert tested.written(SwitchRecord) is None


@pytest.mark.parametrize("stands", ["to grow", "to shrink", "to end a broken round"])
@pytest.mark.parametrize("scaled", [True, False])
def test_who_goes_waits_for_no_step_at_which_others_may_join(stands: str, scaled: bool) -> None:
    """Where ranks train alone, the next common step can be hours away."""
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    order = SwitchRecord(
        3, LIFE, stands == "to end a broken round", stands, grows=stands == "to grow"
    )
    terms = job(1, 1 if scaled else 4, in_place=True)
    members = node("a", full=1), node("b", full=1)
    tested.wants(members[0])
    tested.sees(job(1, 4, in_place=True), sealed(3, "a", "b"), order, *members, node("c", full=1))
    assert tested.written(SwitchRecord) is None
    tested.changes(terms if scaled else node("b", full=1, status=LEAVING))
    written = tested.written(SwitchRecord)
    assert (written is not None) is (stands == "to grow")
    assert written is None or (written.broken, written.grows) == (False, False)
    reason = "the job was scaled to at most 1 nodes" if scaled else "node b was asked to leave"
    assert written is None or written.reason == reason


@pytest.mark.parametrize("over", [True, False])
def test_a_smaller_world_is_for_those_who_train(over: bool) -> None:
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    second = node("b", full=1, incarnation=LIFE, returned=3 if over else 0)
    tested.wants(node("a", full=1))
    tested.sees(job(1, 1, in_place=True), sealed(3, "a", "b"), node("a", full=1), second)
    order = tested.written(SwitchRecord)
    assert (order is None) is over
    assert order is None or not order.grows


def test_what_a_node_says_of_the_end_is_kept_until_it_is_in_another_life() -> None:
    tested = member().feed(TrainReturned(3))
    own = tested.wrote(NodeRecord)
    assert (own.returned, own.incarnation) == (3, LIFE)
    assert has_returned(own, sealed(3, "a"))
    for other in (sealed(4, "a"), replace(sealed(3, "a"), incarnation="another")):
        assert not has_returned(own, other)


def ordered_too_late() -> NodeUnderTest:
    """Of two members whose ``train`` has returned, with an order to take in node c."""
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    over = {"full": 1, "incarnation": LIFE, "returned": 3}
    members = node("a", **over), node("b", **over)
    order = SwitchRecord(3, LIFE, broken=False, reason="node c is back", grows=True)
    tested.wants(members[0])
    tested.sees(job(in_place=True), sealed(3, "a", "b"), order, *members, back("c", 2, full=1))
    return tested


def done(name: str) -> NodeRecord:
    """Its script has ended well in round 3."""
    return node(name, full=1, incarnation=LIFE, returned=3, done_round=3, status=DONE)


def with_workers(name: str, workers: int) -> Member:
    return Member(name, name, "127.0.0.1", workers, 1000 + ord(name[0]))
