"""What a node does while the store does not serve it, and when it gives up: pure.

A node is *served* while it hears of what happens, its writes are taken, and its lease is kept. If
it is not, three things follow, each at its own time:

- **The fence.** Others may take it for dead once its lease has run out, and go on without it after
  ``--fence-timeout``. What counts is when the last request was *sent* that the store acknowledged:
  the others may have heard nothing since then. After 0.8 of the fence it stops its workers.
- **The end.** What a node waits for (a round, the end of the job) comes through the store. So it
  gives up when it has waited for ``--join-timeout`` without being served. This is the one place
  that knows of it: a node waits if and only if the mark ``wait`` is set.
- **A word**, at once and again every half a minute: nobody should have to ask why nothing happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.config import FENCE_REST
from elastic_runtime.protocol.records import DONE, GONE
from elastic_runtime.rendezvous.core.notices import Fenced, StoreTimeout, StoreTrouble

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import State, Trouble

# An agent without contact stops its workers a little before the others stop waiting for it.
FENCE_SHARE = 1.0 - FENCE_REST
# Seconds from one word about the same trouble to the next; a write may fail for this long before
# the first.
AGAIN = 30.0
_SHORT = 1.0


def cope(state: State, plan: Plan, now: float) -> State:
    """Does what is due because the store does not serve this node; nothing if it does."""
    assert state.record is not None
    if state.record.status == GONE:
        return state
    state = _fence(state, plan, now)
    trouble = state.trouble(now)
    if trouble is None:
        return state.unmarked("word")
    return _give_up(_speak(state, trouble, plan, now), trouble, plan, now)


def _fence(state: State, plan: Plan, now: float) -> State:
    """A lost store does not stop a whole group, but not for ever: others may take us for dead."""
    assert state.record is not None
    if state.current is None or state.record.status == DONE:
        return state  # nothing runs here
    if state.connected and not state.lease_lost:
        return state
    limit = state.acked_at + FENCE_SHARE * state.policy.timeouts.fence_timeout
    if state.connected:
        # We may have stood still ourselves, and the store is about to tell us how things are.
        limit = max(limit, state.regained_at + state.policy.answer)
    if now < limit:
        plan.wake_at(limit)
        return state
    plan.reason = "no contact to the store for too long"
    text = f"no contact to the store for {now - state.acked_at:.0f} s; others may go on without us"
    return state.tell(Fenced(text), once=f"fence/{state.acked_at}")


def _speak(state: State, trouble: Trouble, plan: Plan, now: float) -> State:
    last = state.marks.get("word")
    # The loss of contact is told when it happens.
    due = trouble.since + (_SHORT if state.connected else AGAIN) if last is None else last + AGAIN
    if now < due:
        plan.wake_at(due)
        return state
    state = state.unmarked("word").marked("word", now)
    plan.wake_at(now + AGAIN)
    if not state.waits:
        return state.tell(StoreTrouble(trouble.why, now - trouble.since))
    left = _deadline(state, trouble) - now
    return plan.wait(state, f"{trouble.why}; giving up in {max(0.0, left):.0f} s", counts=False)


def _give_up(state: State, trouble: Trouble, plan: Plan, now: float) -> State:
    if not state.waits:
        return state
    due = _deadline(state, trouble)
    if now < due:
        plan.wake_at(due)
        return state
    plan.reason = "the store has not served this node for too long"
    if not state.contacted:
        why = f": {trouble.why}" if trouble.why else ""
        text = f"the rendezvous store does not answer{why}; is --rdzv-endpoint right, and is it up?"
    else:
        text = f"{trouble.why}, for {now - trouble.since:.0f} s; this node cannot go on without it"
        text += f" (--join-timeout){state.policy.remedy and '; '}{state.policy.remedy}"
    return state.tell(StoreTimeout(text), once=f"timeout/{due}")


def _deadline(state: State, trouble: Trouble) -> float:
    waiting, policy = state.marks["wait"], state.policy
    if not state.contacted:  # from the start on, and not from when the first try has failed
        return waiting + min(policy.timeouts.connect_timeout, policy.timeouts.join_timeout)
    return max(trouble.since, waiting) + policy.timeouts.join_timeout
