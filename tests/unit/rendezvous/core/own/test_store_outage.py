"""What a node does while the store does not serve it, and what it gives back to one that forgot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.config import Timeouts
from elastic_runtime.limits import FENCE_RESERVE, LONGEST_WAIT, OUTAGE_REPORT_INTERVAL
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport, JobRecord
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction
from elastic_runtime.rendezvous.core.membership_events import (
    Applied,
    Done,
    Event,
    Goodbye,
    LeftRound,
    Tick,
)
from elastic_runtime.rendezvous.core.notices import (
    BadRecord,
    Excluded,
    Fenced,
    StoreState,
    StoreTimeout,
    StoreTrouble,
    Switch,
    Waiting,
)
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Expect,
    Found,
    LeaseLost,
    Lost,
    Refused,
    StoreEntry,
    StoreSnapshot,
)
from tests.unit.rendezvous.node_under_test import (
    POLICY,
    NodeUnderTest,
    job,
    member,
    node,
    sealed,
)

NO_SPACE = "the store answers: database space exceeded"
FULL = Applied("own", None, NO_SPACE)
STOPS_AFTER = (1 - FENCE_RESERVE) * POLICY.timeouts.fence_timeout  # without the store
LEFT = LeftRound(3, FaultReport(3, records.KILLED, "killed"))


# ---------------------------------------------------------------- the fence


def test_a_group_without_the_store_goes_on_for_most_of_the_fence() -> None:
    tested = member().feed(Lost("refused"))
    assert tested.told(StoreState) == [StoreState(False, "refused")]
    assert not tested.later(STOPS_AFTER - 0.1).told(Fenced)
    assert tested.later(0.1).told(Fenced)
    assert not tested.later(1.0).told(Fenced)


def test_the_fence_counts_from_the_last_sign_of_life_that_the_store_has_acknowledged() -> None:
    tested = member()
    tested.feed(Lost("no answer", acked_at=tested.now), 8.6)
    assert not tested.later(STOPS_AFTER - 8.7).told(Fenced)
    assert tested.later(0.1).told(Fenced)


def test_a_lease_that_is_lost_behind_a_dead_connection_is_a_loss_of_the_store() -> None:
    tested = member()
    tested.feed(LeaseLost(acked_at=tested.now), 5.0)
    assert tested.transaction("own") is not None
    tested.feed(Applied("own", None, "no answer"), POLICY.write_timeout)
    assert not tested.later(STOPS_AFTER - 9.1).told(Fenced)
    assert tested.later(0.1).told(Fenced)


def test_a_node_that_stood_still_asks_the_store_before_it_stops_its_workers() -> None:
    tested = member()
    tested.feed(LeaseLost(acked_at=tested.now), 2 * POLICY.timeouts.fence_timeout)
    assert not tested.told(Fenced)
    assert tested.transaction("own") is not None
    assert not tested.changes(node("b"), after=0.1).told(Fenced)
    assert not tested.later(POLICY.write_timeout).told(Fenced)


def test_contact_that_comes_back_in_time_saves_the_group() -> None:
    tested = member().feed(Lost("refused")).feed(Found(), 0.7 * POLICY.timeouts.fence_timeout)
    assert tested.told(StoreState) == [StoreState(True)]
    tested.feed(Lost("again"), 1.0)
    assert not tested.later(0.7 * POLICY.timeouts.fence_timeout).told(Fenced)


# ---------------------------------------------------------------- the end


def ends_after(tested: NodeUnderTest, patience: float) -> str:
    """Asserts that the node gives up after so many seconds, and says why."""
    assert not tested.later(patience - 0.1).told(StoreTimeout)
    (said,) = tested.later(0.1).told(StoreTimeout)
    assert not tested.later(1.0).told(StoreTimeout)
    return said.why


def test_a_store_that_never_answers_is_given_the_time_to_connect() -> None:
    assert "is --rdzv-endpoint right" in ends_after(
        NodeUnderTest(), POLICY.timeouts.connect_timeout
    )


def test_the_first_contact_takes_no_longer_than_the_node_may_wait() -> None:
    policy = replace(POLICY, timeouts=Timeouts(join_timeout=5.0))
    tested = NodeUnderTest(policy=policy).feed(Lost("refused"), 3.0)
    assert "is --rdzv-endpoint right" in ends_after(tested, 2.0)


@pytest.mark.parametrize("event", [LEFT, Done(3)], ids=["a round", "the end"])
def test_who_waits_without_the_store_gives_up(event: Event) -> None:
    """The loss came while a round ran, and what is waited for began later."""
    tested = member().feed(Lost("refused")).feed(event, 100.0)
    assert "refused" in ends_after(tested, POLICY.timeouts.join_timeout)


def test_the_loss_may_come_while_it_waits() -> None:
    assert "refused" in ends_after(
        member().feed(LEFT).feed(Lost("refused"), 100.0), POLICY.timeouts.join_timeout
    )


def test_the_wait_after_the_fence_has_an_end() -> None:
    tested = member().feed(Lost("refused"))
    assert tested.later(POLICY.timeouts.fence_timeout).told(Fenced)
    assert "refused" in ends_after(tested.feed(LEFT, 2.0), POLICY.timeouts.join_timeout)


def test_a_store_that_comes_back_is_given_all_the_time_again() -> None:
    tested = (
        member().feed(LEFT).feed(Lost("refused")).feed(Found(), 0.9 * POLICY.timeouts.join_timeout)
    )
    assert not tested.later(POLICY.timeouts.join_timeout).told(StoreTimeout)
    ends_after(tested.feed(Lost("again"), 1.0), POLICY.timeouts.join_timeout)


def test_who_trains_or_has_said_goodbye_gives_up_nothing() -> None:
    assert (
        not member()
        .feed(Lost("refused"))
        .later(10 * POLICY.timeouts.join_timeout)
        .told(StoreTimeout)
    )
    tested = member().feed(LEFT).feed(Lost("refused")).feed(Goodbye())
    assert not tested.later(10 * POLICY.timeouts.join_timeout).told(StoreTimeout)


# ---------------------------------------------------------------- a store that takes no writes


def full() -> NodeUnderTest:
    """A node that has left its round, and cannot say so."""
    tested = member().feed(LEFT)
    assert tested.transaction("own") is not None
    return tested.feed(FULL)


def test_a_store_that_takes_no_writes_is_told_of_time_and_again() -> None:
    tested = full()
    told = 0
    for _ in range(100):
        tested.feed(FULL if tested.transaction("own") else Tick(), 1.0)
        said = [notice for notice in tested.told(Waiting) if NO_SPACE in notice.reason]
        told += len(said)
        assert all("giving up in" in notice.reason for notice in said)
    assert told == 1 + 99 // OUTAGE_REPORT_INTERVAL


def test_it_goes_on_as_soon_as_a_write_is_taken() -> None:
    tested = full()
    while not tested.transaction("own"):
        tested.later(0.5)
    tested.feed(Applied("own", True))
    for _ in range(100):
        assert not tested.later(1.0).told(Waiting)


def test_who_waits_behind_it_gives_up() -> None:
    tested, seconds = full(), 0.0
    while not tested.told(StoreTimeout):
        tested.feed(FULL if tested.transaction("own") else Tick(), 1.0)
        seconds += 1.0
        assert seconds < POLICY.timeouts.join_timeout + 5.0
    assert seconds >= POLICY.timeouts.join_timeout
    assert NO_SPACE in tested.told(StoreTimeout)[0].why


def test_who_trains_says_it_as_well() -> None:
    tested = member().feed(Applied("events/", None, NO_SPACE))
    said = tested.later(1.0).told(StoreTrouble)
    assert said == [StoreTrouble(NO_SPACE, 1.0)]
    # Nothing more was tried, so nothing more is known.
    for _ in range(60):
        assert not tested.later(1.0).told(StoreTrouble)


# ---------------------------------------------------------------- whatever happens

EVENTS = st.one_of(
    st.just(Lost("refused")),
    st.just(Found()),
    st.just(LeaseLost()),
    st.just(StoreSnapshot((), False)),
    st.just(LEFT),
    st.just(Done(3)),
    st.just(FULL),
    st.just(Tick()),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 2000.0)), max_size=20))
def test_nobody_waits_for_ever_for_a_store_that_is_gone(story: list[tuple[Event, float]]) -> None:
    tested = member()
    last = [(Lost("gone for good"), 0.0)]
    last += [(Tick(), max(POLICY.timeouts.fence_timeout, POLICY.timeouts.join_timeout))] * 3
    for event, after in [*story, *last]:
        tested.feed(event, after)
        assert tested.wake <= tested.now + LONGEST_WAIT
        if tested.told(Fenced):
            tested.feed(LEFT, 2.0)
    gave_up = any(name.startswith("timeout/") for name in tested.state.given)
    assert gave_up or tested.state.own.excluded


# ---------------------------------------------------------------- a store that has lost its memory


def test_a_store_that_forgot_gets_the_round_back_before_anything_else() -> None:
    tested = member().sees(wide=False, forgot=True)
    assert not tested.told(Excluded)
    transaction = tested.request(records.ROUND)
    assert [put.key for put in transaction.puts] == [records.ROUND, records.JOB]
    assert transaction.expects == (Expect(records.ROUND, ABSENT),)
    assert tested.written(RoundRecord) == sealed(3, "a", "b")
    assert tested.shows() == node("b")


def test_a_newcomers_job_in_a_store_that_forgot_gives_way() -> None:
    theirs = replace(job(), incarnation="new")
    tested = member().sees(theirs, wide=False, forgot=True)
    assert tested.written(JobRecord) is None
    assert tested.written(JobRecord, records.ROUND) == job()
    # Without amnesia it is the next life of the job.
    assert member().changes(theirs, gone=("round",)).told(Excluded)


def test_nobody_seals_before_a_running_group_could_say_who_it_is() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    tested.sees(node("c"), forgot=True)
    for _ in range(3):
        assert tested.transaction(records.JOB) is None
        assert tested.transaction(records.ROUND) is None
        tested.later(POLICY.settle / 3)
    # Nobody said anything: what is known of the job goes on.
    assert tested.transaction(records.ROUND) is not None
    assert tested.written(RoundRecord) == sealed(3, "a", "b")


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
        tested.later(wait)
        assert tested.transaction(records.ROUND) is None
        assert tested.transaction(records.JOB) is None
    tested.later(2 * POLICY.settle)
    assert tested.transaction(records.ROUND) is not None


def test_who_was_away_for_less_than_the_fence_gives_the_round_back_soon() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout - 1.0, tested)
    tested.later(POLICY.settle + 0.1)
    assert tested.written(RoundRecord) == sealed(3, "a", "b")


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
        ("job", records.ROUND),
        ("round", records.ROUND),
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
