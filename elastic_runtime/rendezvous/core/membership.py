"""Who is in, when a round is sealed, who gets which rank, and why: one pure step.

``step(state, event, now)`` is all there is. The participant feeds it what happens and performs
what it asks for; the model test feeds it simulated worlds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.rendezvous.core.actions import Plan
from elastic_runtime.rendezvous.core.events import Event, NewNode
from elastic_runtime.rendezvous.core.leader import lead
from elastic_runtime.rendezvous.core.node_state import Action, Follow, Notify, State
from elastic_runtime.rendezvous.core.own_node import conduct
from elastic_runtime.rendezvous.core.reducer import absorb

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.policy import Policy

# Seconds after which a node decides again, whatever has happened.
LOOK_AROUND = 60.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from an event.

    Attributes:
        state: the new knowledge.
        actions: to be performed in this order.
        wake: when to come back without any event; at most ``LOOK_AROUND`` seconds from then, so
            that nothing which this node waits for can be waited for for ever.
        reason: why, or why nothing is done.
    """

    state: State
    actions: tuple[Action, ...]
    wake: float
    reason: str


def begin(policy: Policy) -> State:
    """The knowledge of a node that has heard nothing yet."""
    return State(policy)


def step(state: State, event: Event, now: float) -> Decision:
    """Takes in an event and decides.

    Args:
        state: what the node knows.
        event: what has happened.
        now: seconds on the node's own monotonic clock.

    Returns:
        The decision; the caller keeps its ``state`` for the next step.
    """
    return decide(absorb(state, event, now), now, event)


def decide(state: State, now: float, event: Event | None = None) -> Decision:
    """Decides on what is known. Several events may be absorbed before one decision."""
    plan = Plan()
    if isinstance(event, NewNode):
        plan.actions.append(Follow(f"nodes/{event.record.node}"))
    state = conduct(state, plan, now)
    state = lead(state, plan, now)
    notices = tuple(Notify(notice) for notice in state.notices)
    if notices:
        state = replace(state, notices=())
    if plan.probed:
        state = replace(state, probed={**state.probed, **plan.probed})
    wake = min(plan.wake, now + LOOK_AROUND)
    return Decision(state, (*plan.actions, *notices), wake, plan.reason)
