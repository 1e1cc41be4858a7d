"""What one node does about itself: its own key, its leader, what its agent has to know: pure.

It keeps its own key up to date, finds out which node leads, and notifies its agent: of a round that
it is in, of an order to leave it, of the end, or that the job continued without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import (
    GONE,
    IN,
    PLANNED,
    ROUND,
    FaultReport,
    NodeRecord,
    listed,
    node_key,
)
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.formation.member_status import (
    eligible,
    has_left,
    has_returned,
    leader_of,
)
from elastic_runtime.rendezvous.core.incarnation import restore_round
from elastic_runtime.rendezvous.core.node_decision import (
    Decision,
    FirstProbes,
    look,
    send_probes,
    wait,
    write,
)
from elastic_runtime.rendezvous.core.node_state import OWN, Timer
from elastic_runtime.rendezvous.core.notices import Conflict, Ended, Excluded, Sealed, Switch
from elastic_runtime.rendezvous.core.own.admission import may_register
from elastic_runtime.rendezvous.core.own.reachability_survey import survey_members
from elastic_runtime.rendezvous.core.own.store_outage import handle_outage
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect, Put, Transaction
from elastic_runtime.system.torch_version import differ

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import SwitchRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState

# So many members probe a silent leader soon after each other.
_SOON = 32


def decide_for_own_node(state: NodeState, now: float) -> Decision:
    """Decides about this node."""
    if state.own.record is None or state.own.excluded:
        return Decision(state)
    decision = handle_outage(state, now)
    if not (state.contact.connected and state.shown.complete):
        if state.own.round is None or state.contact.connected:
            return decision
        # Which nodes this one reaches it can find out without the store.
        return decision.followed_by(survey_members(decision.state, now))
    for rule in (
        _check_excluded,
        _give_round_back,
        _skip_called_off,
        _check_torch,
        survey_members,
        _keep_own_key,
        _tell_agent,
        _find_leader,
        _watch_leader,
    ):
        decision = decision.followed_by(rule(decision.state, now))
        if decision.state.own.excluded or not decision.state.shown.complete:
            break
    return decision


def _check_excluded(state: NodeState, now: float) -> Decision:
    """Has the job continued without this node?"""
    if _record(state).status == GONE:
        return Decision(state)
    reason = _why_excluded(state, now)
    if not reason:
        return Decision(state)
    state = replace(state, own=replace(state.own, excluded=True))
    return Decision(state.with_notice(Excluded(reason)), reason=reason)


def _record(state: NodeState) -> NodeRecord:
    assert state.own.record is not None  # or nothing is decided
    return state.own.record


def _why_excluded(state: NodeState, now: float) -> str:
    ours, last, job = state.own.round, state.shown.round.record, state.job_record
    if ours is not None:
        if isinstance(last, RoundRecord):
            if last.incarnation != ours.incarnation:
                return "another incarnation of the job is in the store"
            if last.number >= ours.number and last.identity != ours.identity:
                return f"round {last.number} was formed without this node"
        elif job and job.incarnation != ours.incarnation and now >= state.remembers_at:
            return "another incarnation of the job has begun"
    if state.own.registered and state.own.version == ABSENT:
        # Our lease ran out; while no round was formed without us, we are a member still.
        if not _is_member(state):
            return "this node's key is gone from the store"
    if ours is None and state.own.registered and state.stranger and state.history.took_part == "":
        lead = leader_of(state)
        peers = state.shown.peers.values() if state.shown.wide else [lead] if lead else []
        if any(eligible(state, p) and _of_job(state, p.record.settings) for p in peers):
            return "another job has this run id"
    return ""


def _is_member(state: NodeState) -> bool:
    """Whether this node is in the store's round: runs it, has left it, or is about to learn of it.

    The state of its workers may exist nowhere else, so it does not join again as a new node.
    """
    record, last = state.own.record, state.round_record
    if record is None or last is None or last.rank_of(record.node) < 0:
        return False
    return state.own.round is None or state.own.round.identity == last.identity


def _of_job(state: NodeState, settings: str) -> bool:
    job = state.job_record
    return job is not None and settings == job.settings


def _give_round_back(state: NodeState, now: float) -> Decision:
    """Writes our round into a store that has lost its data, so that numbering continues."""
    ours, shown, job = _to_restore(state), state.shown.round, state.job_record
    if ours is None or _record(state).status == GONE:
        return Decision(state)
    last = shown.record
    knows_job = job and job.incarnation == ours.incarnation and not state.shown.job.unreadable
    is_ours = isinstance(last, RoundRecord) and last.identity == ours.identity
    knows_round = is_ours and not shown.unreadable and shown.version != ABSENT
    newer = isinstance(last, RoundRecord) and last.number > ours.number
    if (knows_job and knows_round) or newer or (is_ours and not ours.whole):
        # A node that knows only some of the members leaves it to the leader.
        return Decision(state.stop(Timer.NO_ROUND))
    if not ours.whole:
        # Nodes that know all of them come first; if none is left, others write the record at least.
        state, settle = state.start(Timer.NO_ROUND, now), state.policy.settle
        turn = min(state.policy.probe_stagger * ours.rank_of(state.me), settle / 4)
        due = state.timers[Timer.NO_ROUND] + settle / 2 + turn
        if now < due:
            return Decision(state, wake=due)
    return restore_round(state, ours, now)


def _to_restore(state: NodeState) -> RoundRecord | None:
    """The round that should be in the store: ours, or our last one if the store has none."""
    known = state.history.round
    if state.own.round is not None or known is None or state.own.record is None:
        return state.own.round
    # Other nodes may have seen it, and have begun.
    known = state.history.unseen or known
    forgotten = state.contact.forgot_at > float("-inf") and state.shown.job.version == ABSENT
    if state.contact.behind:
        return None  # it may be older than the one that the store has lost
    return known if forgotten and known.rank_of(state.own.record.node) >= 0 else None


def _skip_called_off(state: NodeState, now: float) -> Decision:
    """A round that was broken before this node learned of it is left without having begun.

    So is one that the node was not in, if no node knows its members any longer. One that is only to
    be left at a common step is entered first: the ranks of the others are connecting to ours.
    """
    record, last, switch = _record(state), state.round_record, state.switch_record
    if state.own.round is not None or last is None or switch is None or record.status != IN:
        return Decision(state)
    if not _is_called_off(switch):
        return Decision(state)
    rank = last.rank_of(record.node)
    if (rank < 0 and not switch.roll) or has_left(record, last):
        return Decision(state)
    fault = FaultReport(last.number, PLANNED, switch.reason)
    record = replace(record, left=last.number, rank=rank, incarnation=last.incarnation, fault=fault)
    return Decision(replace(state, own=replace(state.own, record=record)))


def _is_called_off(switch: SwitchRecord | None) -> bool:
    return switch is not None and (switch.broken or switch.roll)


def _check_torch(state: NodeState, now: float) -> Decision:
    """In place, ranks with different versions of torch would wait for each other for ever."""
    leader, job = leader_of(state), state.job_record
    if leader is None or job is None or not job.in_place or state.outcome_record is not None:
        return Decision(state)
    mine, theirs = state.policy, leader.record
    if differ(mine.torch, theirs.torch):
        what = f"torch {mine.torch}, and the leader of the job, {theirs.name}, torch {theirs.torch}"
        remedy = "install the same one on all nodes"
    elif mine.regroup and theirs.regroup and mine.regroup != theirs.regroup:
        what = (
            f"--regroup {mine.regroup}, and the leader of the job, {theirs.name}, "
            f"--regroup {theirs.regroup}"
        )
        remedy = "give the same option on all nodes"
    else:
        return Decision(state)
    text = f"this node has {what}: in place all nodes need the same; {remedy}"
    return Decision(state.with_notice(Conflict(text), once="torch"))


def _keep_own_key(state: NodeState, now: float) -> Decision:
    """Keeps our key in the store as it should be."""
    own, record = state.own, _record(state)
    if own.stored == record and not own.lease_lost:
        return Decision(state)
    if own.version == ABSENT and record.status == GONE:
        # No node sees us, so none needs a goodbye.
        pending = state.pending(OWN, now)
        return Decision(state, wake=state.in_flight[OWN].until) if pending else Decision(state)
    admitted = Decision(state)
    if not own.registered and own.round is None:
        ready, admitted = may_register(state, now)
        if not ready:
            return admitted
    key = node_key(record.node)
    expects = [Expect(key, own.version)]
    if own.registered and own.version == ABSENT:
        # Our lease ran out while no round could be sealed: if none was, we are a member still.
        expects.append(Expect(ROUND, state.shown.round.version))
    put = Put(key, record.encode(), leased=record.status != GONE)
    own_key = Transaction(tuple(expects), (put,))
    return admitted.followed_by(write(admitted.state, OWN, own_key, now))


def _tell_agent(state: NodeState, now: float) -> Decision:
    """Notifies the agent of what has changed for it."""
    own, job, outcome = state.own, state.job_record, state.outcome_record
    if outcome is not None:
        ours = outcome.incarnation == state.history.took_part
        if state.shown.outcome.version == own.old_outcome and not ours:
            return Decision(state)
        return Decision(state.with_notice(Ended(outcome), once=f"ended/{outcome.incarnation}"))
    if job is not None and own.stored is not None and not state.stranger:
        if state.history.took_part != job.incarnation:
            state = replace(state, history=replace(state.history, took_part=job.incarnation))
    switch, last, record = state.switch_record, state.round_record, _record(state)
    if own.round is not None:
        if switch is None or switch.round != own.round.number:
            return Decision(state)
        name = f"switch/{switch.incarnation}/{switch.round}/{switch.broken}/{switch.grows}"
        notice = Switch(switch.round, switch.broken, switch.reason, switch.grows)
        return Decision(state.with_notice(notice, once=name))
    if last is None or record.status != IN:
        return Decision(state)
    rank = last.rank_of(record.node)
    if rank >= 0 and not _is_called_off(switch) and not has_left(record, last):
        state = replace(state, own=replace(own, round=last)).stop(Timer.WAITING)
        return Decision(state.with_notice(Sealed(last, rank)))
    if rank < 0 and own.stored is not None:
        return wait(state, _why_outside(state, last), last.size, outside=True)
    return Decision(state)


def _why_outside(state: NodeState, last: RoundRecord) -> str:
    job = state.job_record
    if state.reach.missed:
        names = listed(sorted(member.name for member in state.reach.missed.values()))
        return f"waiting to be admitted: this node does not reach {names}"
    if job is not None and last.size >= job.max_nodes:
        return "the world is full, this node is a spare"
    if any(has_returned(peer.record, last) for peer in state.shown.peers.values()):
        return "training is over, and the script goes on: no node is admitted any more"
    return "waiting to be admitted"


def _find_leader(state: NodeState, now: float) -> Decision:
    """Follows the oldest node; if that is this one, all nodes."""
    if _record(state).status == GONE:
        return Decision(state)
    shown = state.shown
    passed_over = frozenset(shown.unreadable) | {
        node_key(peer.record.node) for peer in shown.peers.values() if not eligible(state, peer)
    }
    leads = state.own.stored is not None and leader_of(state) is None
    if shown.wide:
        if leads or state.own.stored is None:
            return Decision(state)
        wanted = (False, passed_over)
    elif passed_over:
        # A younger leader may be hidden behind a node that cannot lead.
        wanted = (False, shown.asked[1] | passed_over)
    elif leads:
        wanted = (True, shown.asked[1])
    else:
        return Decision(state)
    wide, without = wanted
    return look(state, wide=wide, without=without)


def _watch_leader(state: NodeState, now: float) -> Decision:
    """A member that waits for the next round checks that the leader, who seals it, is alive."""
    leader, record, last = leader_of(state), _record(state), state.round_record
    if leader is None or state.own.round is not None or record.status == GONE:
        return Decision(state)
    if last is None or not has_left(record, last):
        return Decision(state)
    policy, state = state.policy, state.start(Timer.WAITING, now)
    turn = _turn(max(0, last.rank_of(record.node)), policy.probe_stagger)
    since = state.timers[Timer.WAITING]
    due = since + policy.probe_after + turn
    if now < due:
        return Decision(state, wake=due)
    soon = FirstProbes(since, policy.probe_after + turn)
    return send_probes(state, [leader.record], policy.probe_every + turn, now, soon)


def _turn(rank: int, ahead: float) -> float:
    """How many seconds later a member of this rank probes the leader than the first one.

    The nodes that would lead next have to learn of its death early, and the first of them acts for
    all. The many after them wait longer and longer: else all of a thousand nodes would probe the
    leader while it has the most to do.
    """
    return ahead * rank * max(1.0, rank / _SOON)
