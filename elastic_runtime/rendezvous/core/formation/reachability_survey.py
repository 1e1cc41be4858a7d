"""Whom this node reaches: when it looks around, and what it says of it: pure.

A node looks around when the leader asks for it, because a round broke and nobody knows why; when
its own agent asks, because all workers wait for each other; and when it waits outside of a round
after it was cut off. In the middle of the work nobody probes anybody: a fault that has a cause is
not held up, and a healthy round is not disturbed. Whom a node has missed it looks for again, until
it is there or known to be dead.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import GONE, Member, RoundRecord
from elastic_runtime.rendezvous.core.events import BUSY, SILENT
from elastic_runtime.rendezvous.core.notices import Surveyed
from elastic_runtime.rendezvous.core.round_parts import looked_for

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import State

# Silence counts if a probe that is sent so much later meets it as well: a packet may be lost, a
# moment be busy (seconds).
CERTAIN = 0.4
# How often a node looks for those that it missed, in seconds.
AGAIN = 1.0
# Between two probes of a node while its silence is not certain yet, in seconds.
_PAUSE = 0.1
_SURVEY = "survey"
# A node names so many at most that it does not reach: more than it looks for in one round.
_MOST = 256


def survey(state: State, plan: Plan, now: float) -> State:
    """Looks around if there is reason to. Appends to ``plan`` and returns the new state."""
    record = state.record
    if record is None or record.status == GONE:
        return state
    asked_for = _asked_for(state)
    if asked_for is None:
        return _look_again(state.unmarked(_SURVEY), plan, now)
    return _look_around(state.marked(_SURVEY, now), asked_for, plan, now)


def _asked_for(state: State) -> RoundRecord | None:
    """The round whose members this node should look for; None: there is no reason to."""
    record, current, last = state.record, state.current, state.round_record
    assert record is not None
    if current is not None and state.doubted != current.number:
        return None
    if current is not None:
        # The store may have shown more of its members since.
        return last if last is not None and last.identity == current.identity else current
    if last is None or record.checked >= last.number:
        return None
    switch = state.switch_record
    left_out = bool(record.checked) and last.rank_of(record.node) < 0
    return last if left_out or (switch is not None and switch.survey) else None


def _look_around(state: State, last: RoundRecord, plan: Plan, now: float) -> State:
    """Probes everybody, or a sample of a large round; says what was found once all have answered,
    or are certainly silent."""
    record = state.record
    assert record is not None
    if not (last.whole or state.around == last.group):
        # Without the store no other round could follow from what was found, either.
        return plan.know_all(state, last, now, near=True) if state.connected else state
    begun = state.marks[_SURVEY]
    members = looked_for(last)(record.node)
    others = {member.node: member for member in members} | dict(state.missed)
    others.pop(record.node, None)
    waiting = False
    missed: dict[str, Member] = {}
    for node, member in others.items():
        if node in state.dead or not member.probe_port:
            continue
        heard = state.heard.get(node, float("-inf"))
        silent = heard >= begun and state.answers[node] == SILENT
        if silent:
            missed[node] = member
        if heard < begun + (CERTAIN if silent else 0.0):
            waiting = True
            state = plan.probe(state, member, _PAUSE, now)
    if waiting:
        return state
    missed = dict(islice(missed.items(), _MOST))
    state = _found(state, missed, checked=last.number).unmarked(_SURVEY)
    if state.current is None:
        return state
    names = tuple(member.name for member in missed.values())
    asked = [node for node in others if state.heard.get(node, float("-inf")) >= begun]
    busy = tuple(others[node].name for node in asked if state.answers[node] == BUSY)
    return replace(state, doubted=0).tell(Surveyed(last.number, names, busy))


def _look_again(state: State, plan: Plan, now: float) -> State:
    """Looks for those that were missed."""
    missed: dict[str, Member] = {}
    for node, member in state.missed.items():
        if node not in state.dead and state.answers.get(node) == SILENT:
            missed[node] = member
            state = plan.probe(state, member, AGAIN, now)
    return state if missed.keys() == state.missed.keys() else _found(state, missed)


def _found(state: State, missed: dict[str, Member], checked: int = 0) -> State:
    record = state.record
    assert record is not None
    record = replace(
        record, checked=max(record.checked, checked), unreachable=tuple(sorted(missed))
    )
    return replace(state, record=record, missed=missed)
