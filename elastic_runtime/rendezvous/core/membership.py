"""Which nodes are members, when a round is sealed, which ranks they get: one pure step.

``step(state, event, now)`` is all there is. The participant feeds it what happens and performs
what it asks for; the model test feeds it simulated worlds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.limits import LONGEST_WAIT
from elastic_runtime.protocol.records import ROUND, SWITCH, node_key
from elastic_runtime.rendezvous.core.actions import ApplyTransaction, Follow, Notify
from elastic_runtime.rendezvous.core.leader import lead
from elastic_runtime.rendezvous.core.membership_events import NewNode
from elastic_runtime.rendezvous.core.node_decision import Decision
from elastic_runtime.rendezvous.core.node_state import OWN, NodeState
from elastic_runtime.rendezvous.core.own.own_node import decide_for_own_node
from elastic_runtime.rendezvous.core.reducer import reduce
from elastic_runtime.rendezvous.store_contract import ABSENT, Transaction

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
    own = decide_for_own_node(state, now)
    decision = _with_own_key(own, now) or own.followed_by(lead(own.state, now))
    state = decision.state
    notices = tuple(Notify(notice) for notice in state.notices)
    if notices:
        state = replace(state, notices=())
    wake = min(decision.wake, now + LONGEST_WAIT)
    return Decision(state, (*decision.actions, *notices), wake, decision.reason)


def _with_own_key(own: Decision, now: float) -> Decision | None:
    """One transaction for our own key and for what this node writes as the leader after that.

    A leader that reports that it has left a round mostly orders the others to leave it at once, or
    seals the next one if it is the last: two writes in a row would cost all members the time of
    one.

    Args:
        own: what was decided for this node.
        now: seconds on the node's own monotonic clock.

    Returns:
        None: there are no two such writes.
    """
    state = own.state
    mine = _written(own, OWN)
    if mine is None or state.own.version == ABSENT:
        return None
    others = {tag: request for tag, request in state.in_flight.items() if tag != OWN}
    taken = replace(state.own, stored=state.own.record)
    led = lead(replace(state, own=taken, in_flight=others), now)
    next_one = _written(led, ROUND) or _written(led, SWITCH)
    if next_one is None or next_one.first:
        return None
    one, other = mine.transaction, next_one.transaction
    both = Transaction(
        tuple(dict.fromkeys((*one.expects, *other.expects))),
        (*one.puts, *other.puts),
        (*one.deletes, *other.deletes),
    )
    joint = ApplyTransaction(next_one.tag, both, also=(OWN,))
    after = replace(
        led.state,
        own=replace(led.state.own, stored=state.own.stored),
        in_flight={**led.state.in_flight, OWN: state.in_flight[OWN]},
    )
    before = tuple(it for it in own.actions if it is not mine)
    actions = tuple(joint if it is next_one else it for it in led.actions)
    return Decision(after, (*before, *actions), min(own.wake, led.wake), led.reason)


def _written(decision: Decision, tag: str) -> ApplyTransaction | None:
    for action in decision.actions:
        if isinstance(action, ApplyTransaction) and action.tag == tag:
            return action
    return None
