"""What a node does while the store does not serve it, and when it gives up: pure.

A node is *served* while changes reach it, its writes are done, and its lease is kept. If it is not,
three things follow, each at its own time:

- **The fence.** Others may take it for dead once its lease has run out, and continue without it
  after ``--fence-timeout``. What counts is when the last request was *sent* that the store
  acknowledged: the others may have had no sign of it since then. It stops its workers when only the
  share ``FENCE_RESERVE`` of the fence is left.
- **The end.** What a node waits for (a round, the end of the job) comes through the store. So it
  gives up when it has waited for ``--join-timeout`` without being served. This is the one place
  that knows of it: a node waits if and only if ``Timer.WAITING`` runs.
- **A message**, at once and again every half a minute: people should not have to ask why nothing
  happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.limits import FENCE_RESERVE, FIRST_OUTAGE_REPORT, OUTAGE_REPORT_INTERVAL
from elastic_runtime.protocol.records import DONE, GONE
from elastic_runtime.rendezvous.core.node_decision import Decision, wait
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.notices import Fenced, StoreTimeout, StoreTrouble

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.node_state import NodeState, StoreProblem


def handle_outage(state: NodeState, now: float) -> Decision:
    """Does what is due because the store does not serve this node; nothing if it does."""
    if state.own.record is None or state.own.record.status == GONE:
        return Decision(state)
    fenced = _fence(state, now)
    problem = fenced.state.problem(now)
    if problem is None:
        return fenced.followed_by(Decision(fenced.state.stop(Timer.OUTAGE_REPORTED)))
    said = fenced.followed_by(_speak(fenced.state, problem, now))
    return said.followed_by(_give_up(said.state, problem, now))


def _fence(state: NodeState, now: float) -> Decision:
    """A lost store does not stop a whole group, but not for ever: others may take us for dead."""
    own, contact = state.own, state.contact
    if own.round is None or (own.record is not None and own.record.status == DONE):
        return Decision(state)  # nothing runs here
    if contact.connected and not own.lease_lost:
        return Decision(state)
    limit = contact.acked_at + (1 - FENCE_RESERVE) * state.policy.timeouts.fence_timeout
    if contact.connected:
        # Perhaps this process was stopped, and the store's answer is about to come.
        limit = max(limit, contact.regained_at + state.policy.write_timeout)
    if now < limit:
        return Decision(state, wake=limit)
    silent = now - contact.acked_at
    text = (
        f"no contact with the store for {silent:.0f} s; the others may continue without this node"
    )
    state = state.with_notice(Fenced(text), once=f"fence/{contact.acked_at}")
    return Decision(state, reason="no contact with the store for too long")


def _speak(state: NodeState, problem: StoreProblem, now: float) -> Decision:
    """Reports that the store does not serve this node, and how long it still waits for it."""
    last = state.timers.get(Timer.OUTAGE_REPORTED)
    # The loss of contact itself is reported when it happens.
    first = problem.since + (
        FIRST_OUTAGE_REPORT if state.contact.connected else OUTAGE_REPORT_INTERVAL
    )
    due = first if last is None else last + OUTAGE_REPORT_INTERVAL
    if now < due:
        return Decision(state, wake=due)
    state = state.restart(Timer.OUTAGE_REPORTED, now)
    if not state.waits:
        notice = StoreTrouble(problem.why, now - problem.since)
        return Decision(state.with_notice(notice), wake=now + OUTAGE_REPORT_INTERVAL)
    left = max(0.0, _deadline(state, problem) - now)
    text = f"{problem.why}; giving up in {left:.0f} s"
    return wait(state, text, counts=False, until=now + OUTAGE_REPORT_INTERVAL)


def _give_up(state: NodeState, problem: StoreProblem, now: float) -> Decision:
    if not state.waits:
        return Decision(state)
    due = _deadline(state, problem)
    if now < due:
        return Decision(state, wake=due)
    if not state.contact.ever:
        why = f": {problem.why}" if problem.why else ""
        text = f"the rendezvous store does not answer{why}; is --rdzv-endpoint right, and is it up?"
    else:
        text = (
            f"{problem.why}, for {now - problem.since:.0f} s; this node cannot continue without it"
        )
        text += f" (--join-timeout){state.policy.remedy and '; '}{state.policy.remedy}"
    state = state.with_notice(StoreTimeout(text), once=f"timeout/{due}")
    return Decision(state, reason="the store has not served this node for too long")


def _deadline(state: NodeState, problem: StoreProblem) -> float:
    waiting, policy = state.timers[Timer.WAITING], state.policy
    if not state.contact.ever:  # from the start on, and not from when the first try has failed
        return waiting + min(policy.timeouts.connect_timeout, policy.timeouts.join_timeout)
    return max(problem.since, waiting) + policy.timeouts.join_timeout
