"""The way out of a large round of which nobody has all members any more: pure.

Its parts are gone from the store, and so are the keepers who could give them back. Each member
knows its own place, and all who live have a key: so the leader has everybody leave the round, at a
step boundary if all its nodes are there, and each says which place it had (``NodeRecord.rank``).
Who had none says that, so that nobody is waited for in vain. Whoever has answered is what is left
of the round, and the next one follows from it as from any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_DONE
from elastic_runtime.protocol.records import (
    ASKED,
    GONE,
    PLANNED,
    ROUND,
    SWITCH,
    OutcomeRecord,
    SwitchRecord,
    listed,
)
from elastic_runtime.rendezvous.core.actions import crowded
from elastic_runtime.rendezvous.core.formation.round_formation import end, member_of
from elastic_runtime.rendezvous.core.incarnation import ask_for_members, succeed_old_life
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import JobRecord, NodeRecord, RoundRecord
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import State

# For so long those who keep the members are waited for, as a multiple of ``settle``.
_KEEPERS = 2.0


def call_roll(
    state: State, job: JobRecord, last: RoundRecord, plan: Plan, now: float
) -> tuple[State, RoundRecord | None]:
    """Finds out who is left of a round whose members are gone from the store.

    Args:
        state: of the leader.
        job: the job.
        last: the round, as far as it is known.
        plan: collects what is to be done.
        now: seconds on the node's own monotonic clock.

    Returns:
        The new state; and what is left of the round, with all members that are known, once there is
        nobody more to wait for.
    """
    state = state.marked("roll", now)
    switch = state.switch_record
    if switch is None or not switch.roll:
        due = state.marks["roll"] + _KEEPERS * state.policy.settle
        if now < due:
            plan.wake_at(due)
            return ask_for_members(state, last, plan, now), None
    there = _there(state)
    if _all_well(state, last, there):
        text = "the script ended well on all"
        return end(state, OutcomeRecord(job.incarnation, True, EXIT_DONE, text), plan, now), None
    broken = _why_broken(state, last, there, plan, now)
    if switch is None or not switch.roll or (broken and not switch.broken):
        if switch is None and not broken and any(_is_done(node, last) for node in there):
            plan.reason = "the end has begun"
            return state, None
        return _order(state, last, broken, plan, now), None
    silent = [node for node in there if node.status != GONE and not _has_left(node, last)]
    state, ready = _gather(state, silent, plan, now)
    if not ready:
        return state, None
    if not any(_has_left(node, last) and node.rank >= 0 for node in there):
        return _begin_anew(state, silent, plan, now), None
    return state, _found(last, there)


def _there(state: State) -> list[NodeRecord]:
    """What all nodes say that are not known to be dead, ourselves among them."""
    assert state.record is not None
    job = state.job_record
    others = (peer.record for node, peer in state.peers.items() if node not in state.dead)
    ours = job.settings if job else ""
    return [state.record, *(node for node in others if not ours or node.settings == ours)]


def _has_left(node: NodeRecord, last: RoundRecord) -> bool:
    return node.incarnation == last.incarnation and node.left >= last.number


def _is_done(node: NodeRecord, last: RoundRecord) -> bool:
    return node.incarnation == last.incarnation and node.done_round == last.number


def _all_well(state: State, last: RoundRecord, there: list[NodeRecord]) -> bool:
    """Whether the script has ended well on as many nodes as the round has."""
    seen = {node for node, number in state.done_seen.items() if number == last.number}
    left = {node.node for node in there if _has_left(node, last)}
    done = {node.node for node in there if _is_done(node, last)}
    return len((seen | done) - left) >= last.size


def _why_broken(
    state: State, last: RoundRecord, there: list[NodeRecord], plan: Plan, now: float
) -> str:
    """Why the round cannot go on as it is; "" if it can, as far as is seen."""
    for node in there:
        fault = node.fault if _has_left(node, last) and node.rank >= 0 else None
        if fault is not None and fault.kind not in (ASKED, PLANNED):
            return f"{fault.reason} on {node.name}"
    if now < state.settled_at:
        plan.wake_at(state.settled_at)
        return ""
    ended = {node for node, number in state.done_seen.items() if number == last.number}
    inside = {node.node for node in there if not _has_left(node, last) or node.rank >= 0} | ended
    gone = last.size - len(inside)
    return f"{gone} of the {last.size} nodes of round {last.number} are gone" if gone > 0 else ""


def _order(state: State, last: RoundRecord, broken: str, plan: Plan, now: float) -> State:
    """Has everybody leave the round, and say where it was."""
    known = state.switch_record
    text = f"the store has lost who is in round {last.number}, and no node knows all of them"
    reason = f"{text}; {broken}" if broken else text
    if known is not None and known.broken:
        reason, broken = known.reason, known.reason
    switch = SwitchRecord(last.number, last.incarnation, bool(broken), reason, roll=True)
    plan.reason = reason
    expects = (Expect(SWITCH, state.switch.version), Expect(ROUND, state.round.version))
    return plan.apply(state, SWITCH, Transaction(expects, (Put(SWITCH, switch.encode()),)), now)


def _gather(state: State, silent: list[NodeRecord], plan: Plan, now: float) -> tuple[State, bool]:
    """Waits until everybody who lives has left the round, or had the time to."""
    state, policy, switch = state.marked("gather", now), state.policy, state.switch_record
    begun = state.marks["gather"]
    if not silent or now >= begun + policy.timeouts.rejoin_timeout:
        return state, True
    plan.wake_at(begun + policy.timeouts.rejoin_timeout)
    plan.reason = f"waiting for {listed([node.name for node in silent])} to say where they were"
    if switch is None or not switch.broken:
        return state, False
    crowd = crowded(len(silent))
    if now < begun + crowd * policy.probe_after:
        plan.wake_at(begun + crowd * policy.probe_after)
        return state, False
    for node in silent:
        if node.node != state.me:
            state = plan.probe(state, node, crowd * policy.probe_every, now)
    return state, False


def _found(last: RoundRecord, there: list[NodeRecord]) -> RoundRecord:
    """What is left of the round: who said where it was, and who is known from before."""
    places = {last.rank_of(member.node): member for member in last.members}
    for node in there:
        if _has_left(node, last) and node.rank >= 0:
            places.setdefault(node.rank, member_of(node))
    members = tuple(places[rank] for rank in sorted(places))
    return replace(last, members=members, ranks=(), firsts=(), nodes=0, workers=0, survivors=0)


def _begin_anew(state: State, silent: list[NodeRecord], plan: Plan, now: float) -> State:
    """Begins another life when nobody who was in the round can be training any more."""
    state = state.marked("ghosts", now)
    due = state.marks["ghosts"] + state.policy.timeouts.fence_timeout
    if now >= due and not silent:
        return succeed_old_life(state, plan, now)
    if now < due:
        plan.wake_at(due)
    text = (
        "the store has lost who was in the last round, and nobody who was is here: they may train"
    )
    return plan.wait(
        state, f"{text}; waiting {state.policy.timeouts.fence_timeout:g} s (--fence-timeout)"
    )
