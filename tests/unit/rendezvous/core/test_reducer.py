"""Several changes are taken in at once, and come to the same as one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.protocol.records import DONE, GONE, node_key
from elastic_runtime.rendezvous.core import reducer
from elastic_runtime.rendezvous.store_contract import Changed, Entry
from tests.unit.rendezvous.seat import LIFE, Seat, job, node, sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.rendezvous.core.node_state import State


def _put(name: str, version: int, created: int = 10, **fields: object) -> Changed:
    return Changed((Entry(node_key(name), node(name, **fields).encode(), created, version),))


def _gone(name: str) -> Changed:
    return Changed((), (node_key(name),))


def _known() -> State:
    return Seat("a").sees(job(), node("a"), node("b"), node("c"), sealed(1, "a", "b", "c")).state


def test_nodes_that_change_again_and_again_are_taken_in_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[Changed] = []
    original = reducer.absorb
    monkeypatch.setattr(
        reducer, "absorb", lambda s, e, now: pieces.append(e) or original(s, e, now)
    )
    changes = [_put(name, 20 + time, step=time) for time in range(50) for name in "bc"]
    state = reducer.absorb_all(_known(), changes, 0.0)
    assert len(pieces) == 1
    assert {state.peers[name].record.step for name in "bc"} == {49}


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
    known = replace(_known(), dead={"b": "refused"})
    singly = known
    for change in changes:
        singly = reducer.absorb_all(singly, [change], 0.0)
    assert reducer.absorb_all(known, changes, 0.0) == singly
