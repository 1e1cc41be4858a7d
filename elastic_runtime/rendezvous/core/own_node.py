"""What one node does about itself: pure.

It keeps its own key true, finds out who leads, and tells its agent what concerns it: a round that
it is in, an order to leave it, the end, or that the job went on without it.
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
    RoundRecord,
    listed,
    node_key,
)
from elastic_runtime.rendezvous.core.admission import may_register
from elastic_runtime.rendezvous.core.formation.member_status import eligible, leader_of
from elastic_runtime.rendezvous.core.formation.reachability_survey import survey
from elastic_runtime.rendezvous.core.incarnation import restore
from elastic_runtime.rendezvous.core.node_state import (
    OWN,
    Look,
    State,
)
from elastic_runtime.rendezvous.core.notices import (
    Ended,
    Excluded,
    Sealed,
    Switch,
)
from elastic_runtime.rendezvous.core.store_outage import cope
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect, Put, Transaction

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.actions import Plan

# So many members look after a leader who is silent soon after each other.
_SOON = 32


# Since when the store has not known of our round, of which we know only some of the members.
_NO_ROUND = "no round"


def conduct(state: State, plan: Plan, now: float) -> State:
    """Decides about this node. Appends to ``plan`` and returns the new state."""
    if state.record is None or state.excluded:
        return state
    state = cope(state, plan, now)
    if not (state.connected and state.snapshot):
        # Whom this node reaches it can find out without the store.
        state = survey(state, plan, now) if state.current and not state.connected else state
        return state
    for step in (_fate, _restore, _skip, survey, _own_key, _news, _find_leader, _watch_leader):
        state = step(state, plan, now)
        if state.excluded or not state.snapshot:
            break
    return state


def _fate(state: State, plan: Plan, now: float) -> State:
    """Has the job gone on without us?"""
    assert state.record is not None
    if state.record.status == GONE:
        return state
    reason = _why_excluded(state, now)
    if not reason:
        return state
    plan.reason = reason
    return replace(state, excluded=True).tell(Excluded(reason))


def _why_excluded(state: State, now: float) -> str:
    ours, last, job = state.current, state.round.record, state.job_record
    if ours is not None:
        if isinstance(last, RoundRecord):
            if last.incarnation != ours.incarnation:
                return "another life of the job holds the store"
            if last.number >= ours.number and last.identity != ours.identity:
                return f"round {last.number} was formed without this node"
        elif job and job.incarnation != ours.incarnation and not state.remembering(now):
            return "another life of the job has begun"
    if state.registered and state.version == ABSENT:
        # Our lease ran out; while nobody has gone on without us, we are a member still.
        if not _is_member(state):
            return "this node's key is gone from the store"
    if ours is None and state.registered and state.stranger and state.took_part == "":
        lead = leader_of(state)
        peers = state.peers.values() if state.wide else [lead] if lead else []
        if any(eligible(state, p) and _of_job(state, p.record.settings) for p in peers):
            return "another job holds this run id"
    return ""


def _is_member(state: State) -> bool:
    """Whether this node is in the store's round: runs it, has left it, or is to hear of it.

    What its workers hold may be held by nobody else: it does not begin anew as a stranger.
    """
    record, last = state.record, state.round_record
    if record is None or last is None or last.rank_of(record.node) < 0:
        return False
    return state.current is None or state.current.identity == last.identity


def _of_job(state: State, settings: str) -> bool:
    job = state.job_record
    return job is not None and settings == job.settings


def _restore(state: State, plan: Plan, now: float) -> State:
    """Gives a store that lost its memory our round back; numbers go on."""
    ours, last, job = _to_restore(state), state.round.record, state.job_record
    if ours is None or (state.record and state.record.status == GONE):
        return state
    knows_job = job and job.incarnation == ours.incarnation and not state.job.unreadable
    shown = isinstance(last, RoundRecord) and last.identity == ours.identity
    knows_round = shown and not state.round.unreadable and state.round.version != ABSENT
    newer = isinstance(last, RoundRecord) and last.number > ours.number
    if (knows_job and knows_round) or newer or (shown and not ours.whole):
        return state.unmarked(_NO_ROUND)  # who knows some of the members leaves it to the leader
    if not ours.whole:
        # Those who know all come first; if there are none, others at least say that it is there.
        state = state.marked(_NO_ROUND, now)
        turn = state.policy.ahead * ours.rank_of(state.me)
        due = state.marks[_NO_ROUND] + state.policy.settle / 2 + min(turn, state.policy.settle / 4)
        if now < due:
            plan.wake_at(due)
            return state
    return restore(state, ours, plan, now)


def _to_restore(state: State) -> RoundRecord | None:
    """The round that the store should know of: ours, or, if it knows of none, our last one."""
    known = state.known_round
    if state.current is not None or known is None or state.record is None:
        return state.current
    # Others may have heard of it, and have begun.
    known = state.unseen or known
    forgotten = state.forgot_at > float("-inf") and state.job.version == ABSENT
    if state.behind:
        return None  # it may be older than what the store has forgotten
    return known if forgotten and known.rank_of(state.record.node) >= 0 else None


def _skip(state: State, plan: Plan, now: float) -> State:
    """A round that was called off before this node heard of it is left without having begun.

    So is one that the node was not in, where nobody knows any more who was.
    """
    record, last, switch = state.record, state.round_record, state.switch_record
    assert record is not None
    if state.current is not None or last is None or switch is None or record.status != IN:
        return state
    rank = last.rank_of(record.node)
    if (rank < 0 and not switch.roll) or _has_left(state, last):
        return state
    fault = FaultReport(last.number, PLANNED, switch.reason)
    record = replace(record, left=last.number, rank=rank, incarnation=last.incarnation, fault=fault)
    return replace(state, record=record)


def _has_left(state: State, last: RoundRecord) -> bool:
    record = state.record
    assert record is not None
    return record.incarnation == last.incarnation and record.left >= last.number


def _own_key(state: State, plan: Plan, now: float) -> State:
    """Keeps our key in the store as it should be."""
    record = state.record
    assert record is not None
    if state.stored == record and not state.lease_lost:
        return state
    if state.version == ABSENT and record.status == GONE:
        if state.held(OWN, now):
            plan.wake_at(state.holds[OWN])
        return state  # nobody sees us, nobody needs a goodbye
    if not state.registered and state.current is None:
        ready, state = may_register(state, plan, now)
        if not ready:
            return state
    key = node_key(record.node)
    expects = [Expect(key, state.version)]
    if state.registered and state.version == ABSENT:
        # Our lease ran out while nobody could seal: we are still a member if nobody has yet.
        expects.append(Expect(ROUND, state.round.version))
    put = Put(key, record.encode(), leased=record.status != GONE)
    return plan.apply(state, OWN, Transaction(tuple(expects), (put,)), now)


def _news(state: State, plan: Plan, now: float) -> State:
    """Tells the agent what concerns it."""
    record, job = state.record, state.job_record
    assert record is not None
    outcome = state.outcome_record
    if outcome is not None:
        if state.outcome.version == state.old_outcome and outcome.incarnation != state.took_part:
            return state
        return state.tell(Ended(outcome), once=f"ended/{outcome.incarnation}")
    if job is not None and state.stored is not None and not state.stranger:
        if state.took_part != job.incarnation:
            state = replace(state, took_part=job.incarnation)
    switch, last = state.switch_record, state.round_record
    if state.current is not None:
        if switch is None or switch.round != state.current.number:
            return state
        name = f"switch/{switch.incarnation}/{switch.round}/{switch.broken}"
        return state.tell(Switch(switch.round, switch.broken, switch.reason), once=name)
    if last is None or record.status != IN:
        return state
    rank = last.rank_of(record.node)
    if rank >= 0 and not _has_left(state, last) and switch is None:
        return replace(state, current=last).unmarked("wait").tell(Sealed(last, rank))
    if rank < 0 and state.stored is not None:
        full = job is not None and last.size >= job.max_nodes
        text = "the world is full, this node is a spare" if full else "waiting to be let in"
        if state.missed:
            names = listed(sorted(member.name for member in state.missed.values()))
            text = f"waiting to be let in: this node does not reach {names}"
        state = plan.wait(state, text, last.size, outside=True)
    return state


def _find_leader(state: State, plan: Plan, now: float) -> State:
    """Follows the oldest node; if that is this one, all nodes."""
    if state.record is None or state.record.status == GONE:
        return state
    passed_over = frozenset(state.strange) | {
        node_key(peer.record.node) for peer in state.peers.values() if not eligible(state, peer)
    }
    leads = state.stored is not None and leader_of(state) is None
    if state.wide:
        if leads or state.stored is None:
            return state
        wanted = (False, passed_over)
    elif passed_over:
        # Somebody younger may be hidden behind a node that is out of the question.
        wanted = (False, state.asked[1] | passed_over)
    elif leads:
        wanted = (True, state.asked[1])
    else:
        return state
    plan.actions.append(Look(*wanted))
    return replace(state, asked=wanted, snapshot=False)


def _watch_leader(state: State, plan: Plan, now: float) -> State:
    """A member that waits for the next round makes sure that somebody is there to seal it."""
    lead = leader_of(state)
    record = state.record
    assert record is not None
    if lead is None or state.current is not None or record.status == GONE:
        return state
    last = state.round_record
    if last is None or not _has_left(state, last):
        return state
    policy = state.policy
    turn = _turn(max(0, last.rank_of(record.node)), policy.ahead)
    due = state.marks.get("wait", now) + policy.probe_after + turn
    if now < due:
        plan.wake_at(due)
        return state
    return plan.probe(state, lead.record, policy.probe_every + turn, now)


def _turn(rank: int, ahead: float) -> float:
    """How many seconds later a member of this rank probes the leader than the first one.

    Those who lead next have to know of its death early, and the first of them tells all others. So
    the many that come after them wait longer and longer, or a round of a thousand nodes would have
    its leader probed by all of them while it has the most to do.
    """
    return ahead * rank * max(1.0, rank / _SOON)
