"""The way out of a large round of which no node has all members any longer: pure.

Its parts are gone from the store, and so are the keepers that could write them again. Each member
knows its own rank, and every live node has a key: so the leader orders all to leave the round, at a
step boundary if all its nodes are there, and each writes which rank it had (``NodeRecord.rank``).
A node that was not in the round writes that, so that the leader does not wait for it. The
nodes that have answered are what is left of the round, and the next one follows from it as from any
other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER
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
from elastic_runtime.rendezvous.core.formation.member_status import has_left, has_returned
from elastic_runtime.rendezvous.core.formation.round_formation import end_job, member_of
from elastic_runtime.rendezvous.core.incarnation import begin_incarnation, write_round_again
from elastic_runtime.rendezvous.core.node_decision import (
    Decision,
    probe_slowdown,
    send_probes,
    wait,
    write,
)
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import JobRecord, NodeRecord
    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState

# How long to wait for the keepers of the members, as a multiple of ``settle``.
_KEEPERS = 2.0


def call_roll(
    state: NodeState, job: JobRecord, last: RoundRecord, now: float
) -> tuple[Decision, RoundRecord | None]:
    """Finds out which nodes are left of a round whose members are gone from the store.

    Args:
        state: of the leader.
        job: the job.
        last: the round, as far as it is known.
        now: seconds on the node's own monotonic clock.

    Returns:
        What follows; and what is left of the round, with all members that are known, once there is
        no node more to wait for.
    """
    state = state.start(Timer.ROLL_CALL, now)
    switch = state.switch_record
    called = switch is not None and switch.roll
    due = state.timers[Timer.ROLL_CALL] + _KEEPERS * state.policy.settle
    if not called and now < due:
        return write_round_again(state, last, now).by(due), None
    there = _there(state)
    if _all_well(state, last, there):
        text = "the script ended well on all"
        return end_job(state, OutcomeRecord(job.incarnation, True, EXIT_DONE, text), now), None
    broken = _why_broken(state, last, there, now)
    # A member without a key may be about to write it again.
    waits_until = state.absence_counts_at if not broken and now < state.absence_counts_at else NEVER
    if not called or (broken and switch is not None and not switch.broken):
        ending = any(_is_done(node, last) or has_returned(node, last) for node in there)
        if switch is None and not broken and ending:
            return Decision(state, wake=waits_until, reason="the end has begun"), None
        return _order(state, last, broken, now).by(waits_until), None
    silent = [node for node in there if node.status != GONE and not has_left(node, last)]
    gathered, ready = _gather(state, silent, now)
    gathered = gathered.by(waits_until)
    if not ready:
        return gathered, None
    if not any(has_left(node, last) and node.rank >= 0 for node in there):
        return gathered.followed_by(_begin_without_members(gathered.state, silent, now)), None
    return gathered, _remaining(last, there)


def _there(state: NodeState) -> list[NodeRecord]:
    """The records of all nodes that are not known to be dead, our own among them."""
    assert state.own.record is not None
    job = state.job_record
    others = (
        peer.record for node, peer in state.shown.peers.items() if node not in state.reach.dead
    )
    ours = job.settings if job else ""
    return [state.own.record, *(node for node in others if not ours or node.settings == ours)]


def _is_done(node: NodeRecord, last: RoundRecord) -> bool:
    return node.incarnation == last.incarnation and node.done_round == last.number


def _all_well(state: NodeState, last: RoundRecord, there: list[NodeRecord]) -> bool:
    """Whether the script has ended well on as many nodes as the round has."""
    seen = {node for node, number in state.history.ended_well.items() if number == last.number}
    left = {node.node for node in there if has_left(node, last)}
    done = {node.node for node in there if _is_done(node, last)}
    return len((seen | done) - left) >= last.size


def _why_broken(state: NodeState, last: RoundRecord, there: list[NodeRecord], now: float) -> str:
    """Why the round cannot continue as it is; "" if it can, as far as is seen."""
    for node in there:
        fault = node.fault if has_left(node, last) and node.rank >= 0 else None
        if fault is not None and fault.kind not in (ASKED, PLANNED):
            return f"{fault.reason} on {node.name}"
    if now < state.absence_counts_at:
        return ""
    ended = {node for node, number in state.history.ended_well.items() if number == last.number}
    inside = {node.node for node in there if not has_left(node, last) or node.rank >= 0} | ended
    gone = last.size - len(inside)
    return f"{gone} of the {last.size} nodes of round {last.number} are gone" if gone > 0 else ""


def _order(state: NodeState, last: RoundRecord, broken: str, now: float) -> Decision:
    """Orders all nodes to leave the round, and to write which rank they had."""
    known = state.switch_record
    text = f"the store has lost the members of round {last.number}, and no node knows all of them"
    reason = f"{text}; {broken}" if broken else text
    if known is not None and known.broken:
        reason, broken = known.reason, known.reason
    switch = SwitchRecord(last.number, last.incarnation, bool(broken), reason, roll=True)
    shown = state.shown
    expects = (Expect(SWITCH, shown.switch.version), Expect(ROUND, shown.round.version))
    order = Transaction(expects, (Put(SWITCH, switch.encode()),))
    return write(state, SWITCH, order, now, reason)


def _gather(state: NodeState, silent: list[NodeRecord], now: float) -> tuple[Decision, bool]:
    """Waits until every live node has left the round, or its time to do so is over."""
    state = state.start(Timer.GATHERING, now)
    policy, switch, begun = state.policy, state.switch_record, state.timers[Timer.GATHERING]
    due = begun + policy.timeouts.rejoin_timeout
    if not silent or now >= due:
        return Decision(state), True
    names = listed([node.name for node in silent])
    waiting = Decision(state, wake=due, reason=f"waiting for {names} to report their ranks")
    if switch is None or not switch.broken:
        return waiting, False
    slowdown = probe_slowdown(len(silent))
    first = begun + slowdown * policy.probe_after
    if now < first:
        return waiting.by(first), False
    others = [node for node in silent if node.node != state.me]
    return waiting.followed_by(
        send_probes(state, others, slowdown * policy.probe_every, now)
    ), False


def _remaining(last: RoundRecord, there: list[NodeRecord]) -> RoundRecord:
    """What is left of the round: the nodes that wrote their rank, and those known from before."""
    places = {last.rank_of(member.node): member for member in last.members}
    for node in there:
        if has_left(node, last) and node.rank >= 0:
            places.setdefault(node.rank, member_of(node))
    members = tuple(places[rank] for rank in sorted(places))
    return replace(last, members=members, ranks=(), firsts=(), nodes=0, workers=0, survivors=0)


def _begin_without_members(state: NodeState, silent: list[NodeRecord], now: float) -> Decision:
    """Begins another incarnation when no node of the round can still be training."""
    state = state.start(Timer.OLD_LIFE_SILENT, now)
    due = state.timers[Timer.OLD_LIFE_SILENT] + state.policy.timeouts.fence_timeout
    if now >= due and not silent:
        return begin_incarnation(state, now)
    text = (
        "the store has lost the members of the last round, and none of them is here: they may train"
    )
    waiting = wait(
        state, f"{text}; waiting {state.policy.timeouts.fence_timeout:g} s (--fence-timeout)"
    )
    return waiting.by(due) if now < due else waiting
