"""Which nodes this one reaches: when it probes them, and what it writes about it: pure.

A node makes a survey when the leader asks for it, because a round broke and no report says why;
when its own agent asks, because all workers wait for each other; and while it waits outside of a
round after it was cut off. While a round works, nothing is probed: a fault that has a known cause
is not delayed, and a healthy round is not disturbed. A node that did not answer is probed again
until it answers or is known to be dead.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import GONE
from elastic_runtime.rendezvous.core.membership_events import BUSY, SILENT
from elastic_runtime.rendezvous.core.node_decision import Decision, ask_for_members, send_probes
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.notices import Surveyed
from elastic_runtime.rendezvous.core.round_parts import looked_for

if TYPE_CHECKING:
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState

# Silence counts if a probe that is sent so much later gets no answer either: a packet may be lost,
# a node be busy for a moment (seconds).
CERTAIN = 0.4
# How often a node that did not answer is probed again, in seconds.
AGAIN = 1.0
# Between two probes of a node while its silence is not certain yet, in seconds.
_PAUSE = 0.1
# A node names at most so many that it does not reach: more than it probes in one round.
_MOST = 256


def survey_members(state: NodeState, now: float) -> Decision:
    """Makes a survey if there is reason to."""
    record = state.own.record
    if record is None or record.status == GONE:
        return Decision(state)
    asked_for = _asked_for(state)
    if asked_for is None:
        return _look_again(state.stop(Timer.SURVEY), now)
    return _look_around(state.start(Timer.SURVEY, now), asked_for, now)


def _asked_for(state: NodeState) -> RoundRecord | None:
    """The round whose members this node should probe; None: there is no reason to."""
    record, current, last = state.own.record, state.own.round, state.round_record
    if current is not None:
        if state.reach.wanted != current.number:
            return None
        # More of its members may have been read since.
        return last if last is not None and last.identity == current.identity else current
    if record is None or last is None or record.checked >= last.number:
        return None
    switch = state.switch_record
    left_out = bool(record.checked) and last.rank_of(record.node) < 0
    return last if left_out or (switch is not None and switch.survey) else None


def _look_around(state: NodeState, last: RoundRecord, now: float) -> Decision:
    """Probes all members, or a sample of a large round; writes the result once all have answered or
    are certainly silent."""
    if not (last.whole or state.shown.sampled == last.group):
        # Without the store no other round could follow from what was found, either.
        connected = state.contact.connected
        return ask_for_members(state, last, now, sample=True) if connected else Decision(state)
    begun, reach = state.timers[Timer.SURVEY], state.reach
    members = looked_for(last)(state.me)
    others = {member.node: member for member in members} | dict(reach.missed)
    others.pop(state.me, None)
    open_: list[Member] = []
    missed: dict[str, Member] = {}
    for node, member in others.items():
        if node in reach.dead or not member.probe_port:
            continue
        answered = reach.answered.get(node, float("-inf"))
        silent = answered >= begun and reach.answers[node] == SILENT
        if silent:
            missed[node] = member
        if answered < begun + (CERTAIN if silent else 0.0):
            open_.append(member)
    if open_:
        return send_probes(state, open_, _PAUSE, now)
    missed = dict(islice(missed.items(), _MOST))
    state = _with_missed(state, missed, checked=last.number).stop(Timer.SURVEY)
    if state.own.round is None:
        return Decision(state)
    names = tuple(member.name for member in missed.values())
    asked = [node for node in others if reach.answered.get(node, float("-inf")) >= begun]
    busy = tuple(others[node].name for node in asked if reach.answers[node] == BUSY)
    state = replace(state, reach=replace(state.reach, wanted=0))
    return Decision(state.with_notice(Surveyed(last.number, names, busy)))


def _look_again(state: NodeState, now: float) -> Decision:
    """Probes those again that did not answer."""
    reach = state.reach
    missed = {
        node: member
        for node, member in reach.missed.items()
        if node not in reach.dead and reach.answers.get(node) == SILENT
    }
    found = state if missed.keys() == reach.missed.keys() else _with_missed(state, missed)
    return send_probes(found, missed.values(), AGAIN, now)


def _with_missed(state: NodeState, missed: dict[str, Member], checked: int = 0) -> NodeState:
    """Notes these nodes as out of reach, in our record, too; ``checked``: in this round."""
    record = state.own.record
    assert record is not None
    record = replace(
        record, checked=max(record.checked, checked), unreachable=tuple(sorted(missed))
    )
    own, reach = replace(state.own, record=record), replace(state.reach, missed=missed)
    return replace(state, own=own, reach=reach)
