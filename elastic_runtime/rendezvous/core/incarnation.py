"""How an incarnation of a job begins, follows another, and survives a store that forgets: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import (
    GONE,
    JOB,
    OUTCOME,
    ROUND,
    SWITCH,
    JobRecord,
    listed,
    node_key,
)
from elastic_runtime.rendezvous.core.membership_events import OTHER, REFUSED
from elastic_runtime.rendezvous.core.node_decision import Decision, send_probes, wait, write
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.round_parts import head_of, keys, split_round
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState


def restore_round(state: NodeState, ours: RoundRecord, now: float) -> Decision:
    """Writes a round, and the job that it belongs to, into a store that has lost its data.

    If not all members of the round are known, only its record is written; ``roll_call`` says what
    follows from that.

    The round comes first: where the two are not written at once, a job without a round would look
    like one that has not begun.
    """
    layout, shown = state.policy.layout, state.shown
    head, parts = split_round(ours, layout) if ours.whole else (head_of(ours, layout.first), ())
    puts: tuple[Put, ...] = (Put(ROUND, head.encode()),)
    job = state.job_record
    if job is None or job.incarnation != ours.incarnation or shown.job.unreadable:
        known = state.history.job
        if known is None or known.incarnation != ours.incarnation:
            known = replace(_new_job(state, 0), incarnation=ours.incarnation)
        puts = (*puts, Put(JOB, known.encode()))
    give_back = Transaction((Expect(ROUND, shown.round.version),), puts)
    return write(state, ROUND, give_back, now, "the store has lost its data", first=parts)


def write_round_again(state: NodeState, last: RoundRecord, now: float) -> Decision:
    """Writes the record of a round again whose parts are gone from the store.

    Nodes that know all its members then check the parts, and write them again.
    """
    head = head_of(last, state.policy.layout.first)
    same = Expect(ROUND, state.shown.round.version)
    again = Transaction((same,), (Put(ROUND, head.encode()),))
    waiting = wait(state, f"the members of round {last.number} are gone from the store")
    return waiting.followed_by(write(waiting.state, ROUND, again, now))


def create_job(state: NodeState, now: float) -> Decision:
    """The first node of a job writes down what it is."""
    shown, history = state.shown, state.history
    forgotten = history.job is not None and shown.job.version == 0
    if forgotten or shown.round.version or shown.job.unreadable:
        # A job was running here: its members get the chance to say so first.
        state = state.start(Timer.NO_JOB, now)
        due = state.timers[Timer.NO_JOB] + state.policy.settle
        if now < due:
            return wait(state, "the store shows no job, but one may be running", until=due)
    unaware = state.contact.behind or (state.policy.resuming and not forgotten)
    if unaware and not shown.round.version:
        # Its members may be training without contact to the store, or those of an incarnation that
        # began while we had no contact. They have stopped, or have given it back, when the fence
        # is over.
        state = state.start(Timer.RESUMING, now)
        due = state.timers[Timer.RESUMING] + state.policy.timeouts.fence_timeout
        if now < due:
            text = "the store is empty, but the job has run before: members may still train"
            text = f"{text}; waiting for them, at most for --fence-timeout"
            return wait(state, text, until=due)
    known, ours = history.round, history.job
    if known and ours and known.incarnation == ours.incarnation:
        return restore_round(state, known, now)
    job = _new_job(state, history.last_number)
    expects = (Expect(JOB, shown.job.version), Expect(ROUND, shown.round.version))
    create = Transaction(expects, (Put(JOB, job.encode()),))
    return write(state, JOB, create, now, "there is no job yet")


def begin_incarnation(state: NodeState, now: float) -> Decision:
    """Begins a new incarnation once no node of the old one can still be training."""
    last = state.round_record
    silent = [m for m in (last.members if last else ()) if not _is_over(state, m)]
    asked = send_probes(state, silent, 4 * state.policy.probe_every, now)
    state = asked.state
    if silent:
        state = state.start(Timer.OLD_LIFE_SILENT, now)
        due = state.timers[Timer.OLD_LIFE_SILENT] + state.policy.timeouts.fence_timeout
        lingering = any(member.node in state.shown.peers for member in silent)
        if now < due or lingering:
            waiting = asked.followed_by(_await_silent(state, silent, lingering))
            return waiting.by(due) if now < due else waiting
    fresh = _new_job(state, state.history.last_number)
    begin = Transaction(
        (Expect(JOB, state.shown.job.version), Expect(ROUND, state.shown.round.version)),
        (Put(JOB, fresh.encode()),),
        (ROUND, SWITCH, OUTCOME, *keys(last), *dead_keys(state, frozenset())),
    )
    reason = "the last incarnation of the job is over"
    return asked.followed_by(write(state, JOB, begin, now, reason))


def dead_keys(state: NodeState, kept: frozenset[str]) -> tuple[str, ...]:
    """The keys of nodes that are known to be gone, to be removed."""
    return tuple(
        node_key(node)
        for node, peer in state.shown.peers.items()
        if node not in kept and (node in state.reach.dead or peer.record.status == GONE)
    )


def _is_over(state: NodeState, member: Member) -> bool:
    peer = state.shown.peers.get(member.node)
    if member.node in state.reach.dead or (peer is not None and peer.record.status == GONE):
        return True
    return peer is None and state.outcome_record is not None  # the end was agreed before it went


def _await_silent(state: NodeState, silent: list[Member], lingering: bool) -> Decision:
    names = listed([member.name for member in silent])
    if lingering:
        return wait(state, f"the previous run of this job has not ended yet on {names}")
    asked = [state.reach.answers.get(member.node) for member in silent]
    if any(answer in (None, REFUSED, OTHER) for answer in asked):
        return Decision(state)
    text = f"an earlier incarnation of this job may still run on {names} (no answer); "
    return wait(
        state, text + f"waiting {state.policy.timeouts.fence_timeout:g} s (--fence-timeout)"
    )


def _new_job(state: NodeState, first_round: int) -> JobRecord:
    policy = state.policy
    assert state.own.record is not None
    fewest, most = _bounds(state)
    return JobRecord(
        incarnation=f"{state.me}.{first_round}",
        min_nodes=fewest,
        max_nodes=most,
        launch_min=policy.min_nodes,
        launch_max=policy.max_nodes,
        node_unit=policy.node_unit,
        entry=policy.entry,
        in_place=policy.in_place,
        first_round=first_round,
        settings=state.own.record.settings,
        # Nodes of the last one may still have to be asked whether it is over.
        secret=state.secret or policy.secret,
        invocation=policy.invocation,
        protocol=policy.protocol,
        release=policy.release,
    )


def _bounds(state: NodeState) -> tuple[int, int]:
    """The fewest and the most nodes of a new incarnation.

    What ``elasticctl scale`` has set stays until the job ends, also when all its nodes have died in
    between: people do not see that a new incarnation has begun.
    """
    policy, before = state.policy, state.history.job
    assert state.own.record is not None
    if (
        before is not None
        and state.outcome_record is None
        and before.settings == state.own.record.settings
        and (before.launch_min, before.launch_max) == (policy.min_nodes, policy.max_nodes)
    ):
        return before.min_nodes, before.max_nodes
    return policy.min_nodes, policy.max_nodes
