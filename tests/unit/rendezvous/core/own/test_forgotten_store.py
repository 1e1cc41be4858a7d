"""What a node gives back to a store that has lost its memory, and what it does with odd records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import (
    JOB,
    ROUND,
    FaultReport,
    JobRecord,
)
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction
from elastic_runtime.rendezvous.core.membership_events import (
    LeftRound,
    Tick,
)
from elastic_runtime.rendezvous.core.notices import (
    BadRecord,
    Excluded,
    StoreState,
    Switch,
)
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Expect,
    Found,
    Lost,
    Refused,
    StoreEntry,
)
from tests.unit.rendezvous.node_under_test import (
    POLICY,
    NodeUnderTest,
    job,
    member,
    node,
    own_record,
    sealed,
)


def test_a_store_that_forgot_gets_the_round_back_before_anything_else() -> None:
    tested = member().sees(wide=False, forgot=True)
    assert not tested.told(Excluded)
    transaction = tested.transaction(ROUND)
    assert transaction is not None
    assert [put.key for put in transaction.puts] == [ROUND, JOB]
    assert transaction.expects == (Expect(ROUND, ABSENT),)
    assert tested.written(RoundRecord, ROUND) == sealed(3, "a", "b")
    assert own_record(tested) == node("b")


def test_a_newcomers_job_in_a_store_that_forgot_gives_way() -> None:
    theirs = replace(job(), incarnation="new")
    tested = member().sees(theirs, wide=False, forgot=True)
    assert tested.written(JobRecord, JOB) is None
    assert tested.written(JobRecord, ROUND) == job()
    # Without amnesia it is the next life of the job.
    assert member().changes(theirs, gone=("round",)).told(Excluded)


def test_nobody_seals_before_a_running_group_could_say_who_it_is() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    tested.sees(node("c"), forgot=True)
    for _ in range(3):
        assert tested.transaction(JOB) is None
        assert tested.transaction(ROUND) is None
        tested.feed(Tick(), POLICY.settle / 3)
    # Nobody said anything: what is known of the job goes on.
    assert tested.transaction(ROUND) is not None
    assert tested.written(RoundRecord, ROUND) == sealed(3, "a", "b")


def _came_back_to_an_empty_store(after: float, tested: NodeUnderTest) -> NodeUnderTest:
    """A node loses the store, and finds it empty after so many seconds."""
    tested.feed(Lost("no answer", acked_at=tested.now)).feed(Found(), after)
    return tested.sees(node(tested.name), forgot=True)


@pytest.mark.parametrize("was_member", [False, True])
def test_who_was_away_for_the_fence_gives_an_empty_store_no_round_that_may_be_outdated(
    was_member: bool,
) -> None:
    shown = (job(), sealed(3, "a", "c" if was_member else "b"), node("a"), node("c"))
    tested = NodeUnderTest("c").sees(*shown, wide=False)
    if was_member:
        tested.feed(LeftRound(3, FaultReport(3, "killed", "killed")))
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout, tested)
    # Others may have begun another life and been cut off since: until their own fence is over.
    for wait in (POLICY.settle + 0.1, POLICY.timeouts.fence_timeout - POLICY.settle - 0.2):
        tested.feed(Tick(), wait)
        assert tested.transaction(ROUND) is None
        assert tested.transaction(JOB) is None
    tested.feed(Tick(), 2 * POLICY.settle)
    assert tested.transaction(ROUND) is not None


def test_who_was_away_for_less_than_the_fence_gives_the_round_back_soon() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout - 1.0, tested)
    tested.feed(Tick(), POLICY.settle + 0.1)
    assert tested.written(RoundRecord, ROUND) == sealed(3, "a", "b")


def test_who_was_away_for_the_fence_is_told_by_a_job_in_the_store_how_things_are() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout, tested)
    assert tested.state.contact.behind
    tested.changes(job(), sealed(4, "a", "b"))
    assert not tested.state.contact.behind


def test_a_store_that_refuses_us_is_told_once() -> None:
    tested = NodeUnderTest().feed(Refused("wrong password"))
    assert tested.told(StoreState) == [StoreState(False, "wrong password", refused=True)]
    assert not tested.feed(Refused("wrong password")).told(StoreState)


@pytest.mark.parametrize(
    ("key", "mended_by"),
    [
        ("job", ROUND),
        ("round", ROUND),
        ("nodes/b", "own"),
        ("switch", ""),
        ("outcome", ""),
        ("nodes/x", ""),
    ],
)
def test_what_cannot_be_read_is_reported_once_and_disturbs_nobody(key: str, mended_by: str) -> None:
    tested = member()
    before = tested.state
    junk = Changed((StoreEntry(key, b"\x80\x04 not ours", 90, 91),))
    (notice,) = tested.feed(junk).told(BadRecord)
    assert notice.key == key
    assert not tested.told(Excluded)
    assert not tested.told(Switch)
    assert tested.state.round_record == before.round_record
    written = [action.tag for action in tested.actions if isinstance(action, ApplyTransaction)]
    assert written == ([mended_by] if mended_by else [])
    assert not tested.feed(junk).told(BadRecord)
