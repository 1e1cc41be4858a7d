"""The lives of a job: how one begins, follows another, and survives a store that forgets: pure."""

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
    Member,
    RoundRecord,
    listed,
    node_key,
)
from elastic_runtime.rendezvous.core.events import OTHER, REFUSED
from elastic_runtime.rendezvous.core.round_parts import apart, head_of, keys
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import State


def restore(state: State, ours: RoundRecord, plan: Plan, now: float) -> State:
    """Gives a store that lost its memory a round back, and the job that it belongs to.

    Of a round of which not all members are known it gets the record alone: what becomes of that is
    told in ``rollcall``.

    The round comes first: where the two are not written at once, a job without a round would look
    like one that has not begun.
    """
    layout = state.policy.layout
    head, parts = apart(ours, layout) if ours.whole else (head_of(ours, layout.first), ())
    puts: tuple[Put, ...] = (Put(ROUND, head.encode()),)
    job = state.job_record
    if job is None or job.incarnation != ours.incarnation or state.job.unreadable:
        known = state.known_job
        if known is None or known.incarnation != ours.incarnation:
            known = replace(_new_job(state, 0), incarnation=ours.incarnation)
        puts = (*puts, Put(JOB, known.encode()))
    plan.reason = "the store has lost its memory"
    give_back = Transaction((Expect(ROUND, state.round.version),), puts)
    return plan.apply(state, ROUND, give_back, now, first=parts)


def ask_for_members(state: State, last: RoundRecord, plan: Plan, now: float) -> State:
    """Writes the record of a round again whose parts are gone from the store.

    Who keeps all its members looks for the parts then, and gives them back.
    """
    head = head_of(last, state.policy.layout.first)
    again = Transaction((Expect(ROUND, state.round.version),), (Put(ROUND, head.encode()),))
    state = plan.wait(state, f"the members of round {last.number} are gone from the store")
    return plan.apply(state, ROUND, again, now)


def create_job(state: State, plan: Plan, now: float) -> State:
    """The first node of a job writes down what it is."""
    known = state.known_round
    forgotten = state.known_job is not None and state.job.version == 0
    if forgotten or state.round.version or state.job.unreadable:
        # A running job was here: its members have the first word.
        state = state.marked("no job", now)
        due = state.marks["no job"] + state.policy.settle
        if now < due:
            plan.wake_at(due)
            return plan.wait(state, "the store shows no job, but one may be running")
    unaware = state.behind or (state.policy.resuming and not forgotten)
    if unaware and not state.round.version:
        # Its members may be training out of sight of the store, also those of a life that began
        # while we had no contact. They have stopped, or have given it back, when the fence is over.
        state = state.marked("resuming", now)
        due = state.marks["resuming"] + state.policy.timeouts.fence_timeout
        if now < due:
            plan.wake_at(due)
            text = "the store is empty, but the job has run before: its members may still train"
            return plan.wait(state, f"{text}; waiting for them, at most for --fence-timeout")
    ours = state.known_job
    if known and ours and known.incarnation == ours.incarnation:
        return restore(state, known, plan, now)
    job = _new_job(state, state.last_number)
    expects = (Expect(JOB, state.job.version), Expect(ROUND, state.round.version))
    create = Transaction(expects, (Put(JOB, job.encode()),))
    plan.reason = "there is no job yet"
    return plan.apply(state, JOB, create, now)


def succeed_old_life(state: State, plan: Plan, now: float) -> State:
    """Begins a new life once nobody of the old one can be training any more."""
    last = state.round_record
    silent: list[Member] = []
    for member in last.members if last else ():
        if _is_over(state, member):
            continue
        silent.append(member)
        state = plan.probe(state, member, 4 * state.policy.probe_every, now)
    if silent:
        state = state.marked("ghosts", now)
        due = state.marks["ghosts"] + state.policy.timeouts.fence_timeout
        lingering = any(member.node in state.peers for member in silent)
        if now < due or lingering:
            plan.wake_at(due) if now < due else None
            return _await_silent(state, silent, lingering, plan)
    fresh = _new_job(state, state.last_number)
    begin = Transaction(
        (Expect(JOB, state.job.version), Expect(ROUND, state.round.version)),
        (Put(JOB, fresh.encode()),),
        (ROUND, SWITCH, OUTCOME, *keys(last), *dead_keys(state, frozenset())),
    )
    plan.reason = "the last life of the job is over"
    return plan.apply(state, JOB, begin, now)


def dead_keys(state: State, kept: frozenset[str]) -> tuple[str, ...]:
    """The keys of nodes that are known to be gone, to be removed."""
    return tuple(
        node_key(node)
        for node, peer in state.peers.items()
        if node not in kept and (node in state.dead or peer.record.status == GONE)
    )


def _is_over(state: State, member: Member) -> bool:
    peer = state.peers.get(member.node)
    if member.node in state.dead or (peer is not None and peer.record.status == GONE):
        return True
    return peer is None and state.outcome_record is not None  # the end was agreed before it went


def _await_silent(state: State, silent: list[Member], lingering: bool, plan: Plan) -> State:
    names = listed([member.name for member in silent])
    if lingering:
        return plan.wait(state, f"the last life of this job is still ending on {names}")
    asked = [state.answers.get(member.node) for member in silent]
    if any(answer in (None, REFUSED, OTHER) for answer in asked):
        return state
    text = f"an earlier life of this job may still run on {names} (no word from there); "
    return plan.wait(
        state, text + f"waiting {state.policy.timeouts.fence_timeout:g} s (--fence-timeout)"
    )


def _new_job(state: State, first_round: int) -> JobRecord:
    policy = state.policy
    assert state.record is not None
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
        settings=state.record.settings,
        # Nodes of the last life may still have to be asked whether it is over.
        secret=state.secret or policy.secret,
        invocation=policy.invocation,
        protocol=policy.protocol,
        release=policy.release,
    )


def _bounds(state: State) -> tuple[int, int]:
    """The fewest and the most nodes of a new life.

    What ``elasticctl scale`` has set holds until the job ends, and not only until all its nodes
    have died: people do not learn that a new life has begun.
    """
    policy, before = state.policy, state.known_job
    assert state.record is not None
    if (
        before is not None
        and state.outcome_record is None
        and before.settings == state.record.settings
        and (before.launch_min, before.launch_max) == (policy.min_nodes, policy.max_nodes)
    ):
        return before.min_nodes, before.max_nodes
    return policy.min_nodes, policy.max_nodes
