"""Keeps the parts of rounds in the store as they should be: pure.

A leader that dies after it has written the parts of a round, and before the round, leaves parts
that no round names; and parts may be lost or overwritten while no one reads them. So the leader
checks them from time to time, as long as nothing else is to be decided.

Parts of no round may be those of one that another node is about to seal. They are deleted in one
transaction that writes the present round's record again, as it is: a node that seals compares
its version, and so finds that it has to write its parts again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import ROUND, node_key
from elastic_runtime.rendezvous.core.actions import ListParts
from elastic_runtime.rendezvous.core.incarnation import restore_round
from elastic_runtime.rendezvous.core.node_decision import Decision, write
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.notices import BadRecord
from elastic_runtime.rendezvous.core.round_parts import AT_ONCE, head_of, keys
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.formation.member_status import LastRound
    from elastic_runtime.rendezvous.core.membership_events import PartsSeen
    from elastic_runtime.rendezvous.core.node_state import NodeState

# How long a round has been there before the parts are looked at, and how often then (seconds).
_FIRST, _EVERY = 10.0, 60.0
# The tag of the request for a list of the parts.
_PARTS = "parts"


def clean_up_parts(state: NodeState, last: LastRound, now: float) -> Decision:
    """Writes parts of the present round that are missing again, and deletes those of no round.

    Args:
        state: of the leader; no round is being sealed or left.
        last: the present round, with all its members.
        now: seconds on the node's own monotonic clock.
    """
    most = max(last.job.max_nodes, last.job.launch_max)
    if not last.round.group and most <= state.policy.layout.most:
        return Decision(state)  # this job never had parts
    state = state.start(Timer.PARTS_CLEANUP, now)
    due = state.timers[Timer.PARTS_CLEANUP] + _FIRST
    if now < due:
        return Decision(state, wake=due)
    seen, version = state.shown.parts, state.shown.round.version
    if seen is not None and seen.version == version:
        return _clean_up(state, last, seen, now)
    if state.pending(_PARTS, now):
        return Decision(state, wake=state.in_flight[_PARTS].until)
    return Decision(_without_parts(state).with_pending(_PARTS, now + _EVERY), (ListParts(version),))


def _without_parts(state: NodeState) -> NodeState:
    return replace(state, shown=replace(state.shown, parts=None))


def _clean_up(state: NodeState, last: LastRound, seen: PartsSeen, now: float) -> Decision:
    state, ours = _without_parts(state), frozenset(keys(last.round))
    for key in sorted(ours & seen.wrong):
        state = state.with_notice(
            BadRecord(key, "its hash is that of something else"), once=f"bad/{key}"
        )
    if ours - seen.intact:
        given_back = restore_round(state, last.round, now)
        return given_back.because("parts of the round are gone from the store")
    leftover = sorted((seen.intact | seen.wrong) - ours)
    if not leftover:
        asked = state.in_flight.get(_PARTS)
        return Decision(state, wake=asked.until if asked else now)
    shown, own = state.shown, state.own
    expects = (Expect(ROUND, shown.round.version), Expect(node_key(state.me), own.version))
    again = Put(ROUND, head_of(last.round, state.policy.layout.first).encode())
    without = Transaction(expects, (again,), tuple(leftover[:AT_ONCE]))
    return write(state, ROUND, without, now, "the store has parts of no round")
