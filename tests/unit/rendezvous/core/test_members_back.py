"""When nodes and workers that are back are taken in: at once, if no other is to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import SWITCH, NodeRecord, SwitchRecord
from elastic_runtime.protocol.round_records import Member
from elastic_runtime.rendezvous.core.membership_events import Tick
from tests.unit.rendezvous.node_under_test import POLICY, NodeUnderTest, back, job, node, sealed


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
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    tested.wants(node("a", full=1))
    tested.sees(job(in_place=True), sealed(3, "a"), node("a", full=1), *others)
    tested.changes(newcomer)
    assert bool(tested.written(SwitchRecord, SWITCH)) is not waits
    tested.feed(Tick(), 2 * POLICY.join_batch_in_place)
    assert bool(tested.written(SwitchRecord, SWITCH)) is waits


@pytest.mark.parametrize(("now", "waits"), [(3, False), (2, True)])
def test_a_worker_that_is_back_is_taken_in_at_once_if_no_other_is_to_come(
    now: int, waits: bool
) -> None:
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    tested.wants(node("a", full=1))
    two = replace(sealed(3, "a", "b"), members=(member("a", 1), member("b", 1)))
    tested.sees(job(in_place=True), two, node("a", full=1), node("b", full=3))
    tested.changes(node("b", full=3, workers=now))
    assert bool(tested.written(SwitchRecord, SWITCH)) is not waits
    tested.feed(Tick(), 2 * POLICY.join_batch_in_place)
    assert bool(tested.written(SwitchRecord, SWITCH)) is waits


def member(name: str, workers: int) -> Member:
    return Member(name, name, "127.0.0.1", workers, 1000 + ord(name[0]))
