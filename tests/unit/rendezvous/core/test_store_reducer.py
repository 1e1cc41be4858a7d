"""What a node knows after the store has told it something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import DONE, JOB
from elastic_runtime.rendezvous.core.membership_events import REFUSED
from elastic_runtime.rendezvous.core.node_state import NodeState
from elastic_runtime.rendezvous.core.store_reducer import merged, regained
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.store_contract import Changed, StoreEntry
from tests.unit.rendezvous.node_under_test import NodeUnderTest, job, node, sealed


def put(key: str, version: int = 1) -> StoreEntry:
    return StoreEntry(key, b"", version, version)


def test_changes_are_put_together_and_keep_each_value() -> None:
    first, second = put("a"), put("a", 2)
    (one,) = merged([Changed((first,)), Changed((second, put("b")), ("c",))])
    assert one == Changed((first, second, put("b")), ("c",))


@pytest.mark.parametrize(
    "changes",
    [
        [Changed((put("a"),)), Changed((), ("a",))],
        [Changed((), ("a",)), Changed((put("a"),))],
    ],
)
def test_what_comes_and_goes_is_not_put_together(changes: list[Changed]) -> None:
    assert list(merged(changes)) == changes


def test_a_node_that_was_away_for_the_fence_knows_that_it_is_behind() -> None:
    fence = Policy().timeouts.fence_timeout
    known = regained(NodeState(Policy()), 0.0)
    assert known.contact.connected and not known.contact.behind, "it was never there before"
    for away, behind in ((fence - 1, False), (fence, True)):
        lost = replace(known, contact=replace(known.contact, connected=False, acked_at=0.0))
        assert regained(lost, away).contact.behind == behind


def test_a_snapshot_replaces_what_was_known() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"), node("b"), sealed(3, "a", "b"))
    before = tested.state
    tested.sees(job(), node("a"))
    assert (before.round_record is None, len(before.shown.peers)) == (False, 1)
    assert (tested.state.round_record is None, len(tested.state.shown.peers)) == (True, 0)


def test_a_node_that_writes_its_key_anew_is_alive() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    reach = replace(tested.state.reach, dead={"b": REFUSED, "c": REFUSED})
    tested.state = replace(tested.state, reach=reach)
    tested.changes(node("b"))
    assert set(tested.state.reach.dead) == {"c"}


def test_that_a_node_has_ended_well_is_remembered_when_its_key_is_gone() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    tested.changes(node("b", status=DONE, done_round=3))
    tested.changes(gone=("nodes/b",))
    assert tested.state.history.ended_well == {"b": 3}


def test_a_record_that_cannot_be_read_leaves_the_former_one() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    tested.feed(Changed((StoreEntry(JOB, b"rubbish", 9, 9),)))
    assert tested.state.shown.job.unreadable
    assert tested.state.shown.job.record == job()
