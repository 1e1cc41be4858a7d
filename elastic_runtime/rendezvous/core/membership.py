"""Which nodes are members, when a round is sealed, which ranks they get: one pure step.

``step(state, event, now)`` is all there is. The participant feeds it what happens and performs
what it asks for; the model test feeds it simulated worlds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.limits import LONGEST_WAIT
from elastic_runtime.protocol.records import node_key
from elastic_runtime.rendezvous.core.actions import Follow, Notify
from elastic_runtime.rendezvous.core.leader import lead
from elastic_runtime.rendezvous.core.membership_events import NewNode
from elastic_runtime.rendezvous.core.node_decision import Decision
from elastic_runtime.rendezvous.core.node_state import NodeState
from elastic_runtime.rendezvous.core.own.own_node import decide_for_own_node
from elastic_runtime.rendezvous.core.reducer import reduce

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.membership_events import Event
    from elastic_runtime.rendezvous.policy import Policy


def begin(policy: Policy) -> NodeState:
    """The state of a node before its first event."""
    return NodeState(policy)


def step(state: NodeState, event: Event, now: float) -> Decision:
    """Takes in an event and decides.

    Args:
        state: what the node knows.
        event: what has happened.
        now: seconds on the node's own monotonic clock.

    Returns:
        The decision; the caller keeps its ``state`` for the next step.
    """
    decision = decide(reduce(state, event, now), now)
    if isinstance(event, NewNode):
        own_key = Follow(node_key(event.record.node))
        return replace(decision, actions=(own_key, *decision.actions))
    return decision


def decide(state: NodeState, now: float) -> Decision:
    """Decides on what is known. Several events may be taken in before one decision.

    Args:
        state: what the node knows.
        now: seconds on the node's own monotonic clock.
    """
    decision = decide_for_own_node(state, now)
    decision = decision.followed_by(lead(decision.state, now))
    state = decision.state
    notices = tuple(Notify(notice) for notice in state.notices)
    if notices:
        state = replace(state, notices=())
    wake = min(decision.wake, now + LONGEST_WAIT)
    return Decision(state, (*decision.actions, *notices), wake, decision.reason)
