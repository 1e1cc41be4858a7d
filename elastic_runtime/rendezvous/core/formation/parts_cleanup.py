"""Keeps the parts of rounds in the store as they should be: pure.

A leader that dies after it has written the parts of a round, and before the round, leaves parts
that nobody names; and parts may be lost or overwritten while no one reads them. So the leader looks
from time to time, as long as nothing else is to be decided.

Parts of no round may be those of one that another node is about to seal. They are deleted in one
transaction that writes the present round's record again, as it is: whoever seals compares its
version, and so finds that it has to begin anew, with its parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import ROUND, JobRecord, RoundRecord, node_key
from elastic_runtime.rendezvous.core.incarnation import restore
from elastic_runtime.rendezvous.core.node_state import LookAtParts
from elastic_runtime.rendezvous.core.notices import BadRecord
from elastic_runtime.rendezvous.core.round_parts import AT_ONCE, head_of, keys
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import State

# How long a round has been there before the parts are looked at, and how often then (seconds).
_FIRST, _EVERY = 10.0, 60.0
_TIDY = "tidy"


def tidy(state: State, job: JobRecord, last: RoundRecord, plan: Plan, now: float) -> State:
    """Gives back what is missing of the present round, and deletes what belongs to none.

    Args:
        state: of the leader; no round is being sealed or left.
        job: the job.
        last: the present round, with all its members.
        plan: collects what is to be done.
        now: seconds on the node's own monotonic clock.
    """
    layout = state.policy.layout
    if not last.group and max(job.max_nodes, job.launch_max) <= layout.most:
        return state  # this job never had parts
    state = state.marked(_TIDY, now)
    if now < state.marks[_TIDY] + _FIRST:
        plan.wake_at(state.marks[_TIDY] + _FIRST)
        return state
    seen = state.parts
    if seen is None or seen.version != state.round.version:
        if state.held(_TIDY, now):
            plan.wake_at(state.holds[_TIDY])
            return state
        plan.actions.append(LookAtParts(state.round.version))
        return replace(state, parts=None, holds={**state.holds, _TIDY: now + _EVERY})
    state, ours = replace(state, parts=None), frozenset(keys(last))
    for key in sorted(ours & seen.wrong):
        state = state.tell(BadRecord(key, "its hash is that of something else"), once=f"bad/{key}")
    if ours - seen.intact:
        state = restore(state, last, plan, now)
        plan.reason = "parts of the round are gone from the store"
        return state
    strays = sorted((seen.intact | seen.wrong) - ours)
    if not strays:
        plan.wake_at(state.holds.get(_TIDY, now))
        return state
    plan.reason = "the store has parts of no round"
    expects = (Expect(ROUND, state.round.version), Expect(node_key(state.me), state.version))
    again = Put(ROUND, head_of(last, layout.first).encode())
    return plan.apply(state, ROUND, Transaction(expects, (again,), tuple(strays[:AT_ONCE])), now)
