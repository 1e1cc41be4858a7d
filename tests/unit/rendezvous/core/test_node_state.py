"""What a node knows after it was told something, and what decisions are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest

from elastic_runtime.limits import LOST_PROBE_AFTER
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport, JobRecord, OutcomeRecord, node_key
from elastic_runtime.rendezvous.core import reducer
from elastic_runtime.rendezvous.core.actions import Probe
from elastic_runtime.rendezvous.core.membership_events import (
    ALIVE,
    REFUSED,
    Applied,
    Done,
    Event,
    Goodbye,
    Join,
    Leaving,
    LeftRound,
    LookForMembers,
    NewNode,
    PartsGone,
    PartsSeen,
    Probed,
    RecoversInPlace,
    SampleKnown,
    Tick,
    TrainReturned,
    WorkersAvailable,
)
from elastic_runtime.rendezvous.core.node_decision import (
    Decision,
    FirstProbes,
    probe_slowdown,
    send_probes,
)
from elastic_runtime.rendezvous.core.node_state import NodeState
from elastic_runtime.rendezvous.core.reducer import reduce
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Found,
    LeaseLost,
    Lost,
    Refused,
    StoreEntry,
    StoreSnapshot,
)
from tests.unit.rendezvous.node_under_test import LIFE, NodeUnderTest, job, node, sealed, switch

if TYPE_CHECKING:
    from collections.abc import Sequence


def seen(*records: object, **fields: object) -> NodeState:
    return NodeUnderTest("a").sees(job(**fields), node("a"), *records).state  # type: ignore[arg-type]


def test_records_of_another_life_of_the_job_do_not_count() -> None:
    ended = OutcomeRecord(LIFE, True, 0, "done")
    for life, count in ((LIFE, True), ("next", False)):
        state = seen(sealed(3, "a"), switch(3, broken=True), ended, incarnation=life)
        found = state.round_record, state.switch_record, state.outcome_record
        assert [one is not None for one in found] == [count] * 3


def test_an_order_to_leave_an_earlier_round_does_not_count() -> None:
    assert seen(sealed(4, "a"), switch(3, broken=True)).switch_record is None


def test_a_job_with_other_settings_is_that_of_strangers() -> None:
    assert not seen().stranger
    assert seen(settings="others").stranger
    assert not seen(settings="").stranger, "an older version did not write them down"


def test_a_snapshot_replaces_what_was_known() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"), node("b"), sealed(3, "a", "b"))
    before = tested.state
    tested.sees(job(), node("a"))
    assert (before.round_record is None, len(before.shown.peers)) == (False, 1)
    assert (tested.state.round_record is None, len(tested.state.shown.peers)) == (True, 0)


def test_a_record_that_cannot_be_read_leaves_the_former_one_which_is_written_again() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    tested.feed(Changed((StoreEntry(records.JOB, b"rubbish", 9, 9),)))
    assert tested.state.shown.job.unreadable
    assert tested.state.shown.job.record == tested.wrote(JobRecord) == job()


def test_a_node_that_writes_its_key_anew_is_alive() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    reach = replace(tested.state.reach, dead={"b": REFUSED, "c": REFUSED})
    tested.state = replace(tested.state, reach=reach)
    tested.changes(node("b"), gone=("nodes/c",))
    assert set(tested.state.reach.dead) == {"c"}


# ---------------------------------------------------------------- several changes at once


def _put(name: str, version: int, created: int = 10, **fields: object) -> Changed:
    return Changed((StoreEntry(node_key(name), node(name, **fields).encode(), created, version),))


def _gone(name: str) -> Changed:
    return Changed((), (node_key(name),))


def _known() -> NodeState:
    shown = job(), *map(node, "abc"), sealed(1, *"abc")
    return NodeUnderTest("a").sees(*shown).state


def test_nodes_that_change_again_and_again_are_taken_in_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[Changed] = []
    original = reducer.reduce_changed
    monkeypatch.setattr(
        reducer, "reduce_changed", lambda s, e, now: pieces.append(e) or original(s, e, now)
    )
    changes = [_put(name, 20 + time, step=time) for time in range(50) for name in "bc"]
    state = reducer.reduce_all(_known(), changes, 0.0)
    assert len(pieces) == 1
    assert {state.shown.peers[name].record.step for name in "bc"} == {49}


@pytest.mark.parametrize(
    "changes",
    [
        [
            _put("b", 20, status=records.DONE, done_round=1, incarnation=LIFE),
            _put("b", 21, status=records.GONE),
        ],
        [_put("b", 20, status=records.DONE, done_round=1, incarnation=LIFE), _gone("b")],
        [_gone("b"), _put("b", 22, created=22)],
        [_put("b", 20, step=1), _gone("b"), _put("b", 22, created=22), _gone("b")],
        [_put("b", 20, step=1), _gone("c"), _put("b", 22, step=2), _put("c", 23, created=23)],
    ],
)
def test_they_come_to_the_same_as_one_after_the_other(changes: Sequence[Changed]) -> None:
    # Who is taken for dead as a firewall refuses for it lives when it writes its key anew.
    known = _known()
    known = replace(known, reach=replace(known.reach, dead={"b": "refused"}))
    singly = known
    for change in changes:
        singly = reducer.reduce_all(singly, [change], 0.0)
    assert reducer.reduce_all(known, changes, 0.0) == singly


FAULT = FaultReport(1, records.PLANNED, "told to")
OF_THE_STORE: tuple[Event, ...] = (
    *(StoreSnapshot((), wide=True), Changed(), Lost("gone"), Found(), LeaseLost(), Refused("no")),
    *(Applied(records.ROUND, True), PartsGone(1), SampleKnown("group"), PartsSeen(1)),
)
OF_THE_AGENT: tuple[Event, ...] = (
    *(NewNode(node("a")), LeftRound(1, FAULT), WorkersAvailable(1), TrainReturned(1), Done(1)),
    *(Leaving(), Goodbye(), LookForMembers(1), RecoversInPlace()),
)
EVENTS: tuple[Event, ...] = (*OF_THE_STORE, *OF_THE_AGENT, Probed("b", "alive"), Tick())


def test_there_is_one_of_each_kind_of_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", [NodeState(Policy()), _known()], ids=["not joined", "in a round"])
def test_each_event_is_handled_wherever_a_node_is(state: NodeState, event: Event) -> None:
    assert isinstance(reducer.reduce(state, event, 200.0), NodeState)


@pytest.mark.parametrize("state", [NodeState(Policy()), _known()], ids=["not joined", "in a round"])
def test_an_event_that_no_row_handles_is_an_error(state: NodeState) -> None:
    with pytest.raises(AssertionError, match="Join"):
        reducer.reduce(state, Join(), 200.0)  # type: ignore[arg-type]


# ---------------------------------------------------------------- decisions

STATE = NodeState(Policy())
NOW = 100.0


def test_what_is_decided_next_follows_what_was_decided_before() -> None:
    first = Decision(STATE, (Probe("a", "h", 1),), NOW + 5, "first")
    later = replace(STATE, policy=Policy(max_nodes=2))
    both = first.followed_by(Decision(later, (Probe("b", "h", 2),), NOW + 9))
    assert [action.node for action in both.actions if isinstance(action, Probe)] == ["a", "b"]
    assert (both.state, both.wake, both.reason) == (later, NOW + 5, "first")
    assert both.followed_by(Decision(later, reason="last")).reason == "last"
    assert both.by(NOW + 2).wake == NOW + 2
    assert both.by(NOW + 7).wake == NOW + 5


def test_a_node_is_probed_again_only_after_a_while() -> None:
    first = send_probes(STATE, [node("a"), node("b", probe_port=0)], 2.0, NOW)
    assert [action.node for action in first.actions if isinstance(action, Probe)] == ["a"]
    assert first.wake == NOW + 2
    # Nothing has come of it yet: it may be slow.
    soon = send_probes(first.state, [node("a")], 2.0, NOW + 2)
    assert (soon.actions, soon.wake) == ((), NOW + LOST_PROBE_AFTER)
    reach = replace(first.state.reach, answered={"a": NOW + 1})
    answered = replace(first.state, reach=reach)
    assert send_probes(answered, [node("a")], 2.0, NOW + 2).actions
    dead = replace(answered, reach=replace(reach, dead={"a": "refused"}))
    assert not send_probes(dead, [node("a")], 2.0, NOW + 9).actions


def test_many_missing_members_are_probed_less_often() -> None:
    assert probe_slowdown(1) == probe_slowdown(64) == 1.0
    assert probe_slowdown(640) == 10.0


def test_a_node_that_is_killed_this_moment_is_probed_again_soon() -> None:
    """And then less and less often, as long as it is seen to live."""
    soon = FirstProbes(since=NOW, pause=0.01)
    state, now, sent = STATE, NOW + 0.01, []
    while now < NOW + 2:
        decision = send_probes(state, [node("a")], 0.25, now, soon)
        assert decision.actions
        assert decision.wake > now
        sent.append(round(now - NOW, 3))
        state = reduce(decision.state, Probed("a", ALIVE), now)
        assert not send_probes(state, [node("a")], 0.25, decision.wake - 1e-6, soon).actions
        now = decision.wake
    assert sent[:6] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    assert sent[6:9] == [0.57, 0.82, 1.07]
