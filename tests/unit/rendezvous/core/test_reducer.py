"""Several changes are taken in at once, and come to the same as one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest

from elastic_runtime.protocol.records import DONE, GONE, PLANNED, ROUND, FaultReport, node_key
from elastic_runtime.rendezvous.core import reducer
from elastic_runtime.rendezvous.core.membership_events import (
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
from elastic_runtime.rendezvous.core.node_state import NodeState
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
from tests.unit.rendezvous.node_under_test import LIFE, NodeUnderTest, job, node, sealed

if TYPE_CHECKING:
    from collections.abc import Sequence


def _put(name: str, version: int, created: int = 10, **fields: object) -> Changed:
    return Changed((StoreEntry(node_key(name), node(name, **fields).encode(), created, version),))


def _gone(name: str) -> Changed:
    return Changed((), (node_key(name),))


def _known() -> NodeState:
    return (
        NodeUnderTest("a")
        .sees(job(), node("a"), node("b"), node("c"), sealed(1, "a", "b", "c"))
        .state
    )


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
        [_put("b", 20, status=DONE, done_round=1, incarnation=LIFE), _put("b", 21, status=GONE)],
        [_put("b", 20, status=DONE, done_round=1, incarnation=LIFE), _gone("b")],
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


FAULT = FaultReport(1, PLANNED, "told to")
EVENTS: tuple[Event, ...] = (
    StoreSnapshot((), wide=True),
    Changed(),
    Lost("gone"),
    Found(),
    LeaseLost(),
    Refused("no"),
    Applied(ROUND, True),
    Probed("b", "alive"),
    PartsGone(1),
    SampleKnown("group"),
    PartsSeen(1),
    NewNode(node("a")),
    LeftRound(1, FAULT),
    WorkersAvailable(1),
    TrainReturned(1),
    Done(1),
    Leaving(),
    Goodbye(),
    LookForMembers(1),
    RecoversInPlace(),
    Tick(),
)


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
