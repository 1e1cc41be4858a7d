"""What the leader decides for all: a first round, when it is to end, the next one, the end: pure.

The leader is the oldest node that is not known to be dead. It is never elected, and nothing else
depends on it: a node that finds the older ones dead is the leader. Each of its writes is fenced by
the version of what it replaces, so two nodes that both think that they lead cannot both succeed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER
from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from elastic_runtime.protocol.records import (
    ASKED,
    GONE,
    IN,
    JOB,
    LEAVING,
    PLANNED,
    ROUND,
    SWITCH,
    JobRecord,
    OutcomeRecord,
    SwitchRecord,
    called,
    listed,
)
from elastic_runtime.rendezvous.core.formation.member_status import (
    LOST_STATUSES,
    OVER,
    LastRound,
    MemberStatus,
    cost_of,
    eligible,
    fault_of_member,
    has_returned,
    is_cause_known,
    last_round,
    leader_of,
    loss_message,
    record_of,
)
from elastic_runtime.rendezvous.core.formation.parts_cleanup import clean_up_parts
from elastic_runtime.rendezvous.core.formation.reachability import choose_connected
from elastic_runtime.rendezvous.core.formation.retry_rules import is_usage_error
from elastic_runtime.rendezvous.core.formation.roll_call import call_roll
from elastic_runtime.rendezvous.core.formation.round_formation import (
    end_job,
    form_first,
    form_next,
    has_checked,
    joiners,
    largest_world,
    next_trial,
)
from elastic_runtime.rendezvous.core.incarnation import begin_incarnation, create_job
from elastic_runtime.rendezvous.core.node_decision import (
    Decision,
    FirstProbes,
    ask_for_members,
    probe_slowdown,
    send_probes,
    wait,
    write,
)
from elastic_runtime.rendezvous.core.node_state import OWN, Timer
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState

# How many members a node can probe in a second, at least.
_PROBES_A_SECOND = 500
# Only a leader refers to these: they mean nothing after it has not led for a while.
_LEADERS = frozenset(Timer) - {
    Timer.WAITING,
    Timer.OUTAGE_REPORTED,
    Timer.NO_ROUND,
    Timer.SURVEY,
    Timer.RESUMING,
}


def lead(state: NodeState, now: float) -> Decision:
    """Decides for the job, if this node leads."""
    own, shown, record = state.own, state.shown, state.own.record
    served = state.contact.connected and shown.complete and shown.wide
    if record is None or own.excluded or not served:
        return Decision(state)
    if own.stored is None or record.status == GONE or leader_of(state) is not None:
        return Decision(state.stop(*_LEADERS))
    if now < state.remembers_at:
        return Decision(state.start(Timer.NO_JOB, now), wake=state.remembers_at)
    for tag in (JOB, ROUND):
        if state.pending(tag, now):  # what was written last is not seen yet
            return Decision(state, wake=state.in_flight[tag].until)
    job = state.job_record
    if job is None:
        return create_job(state, now)
    if shown.job.unreadable:
        return _write_job(state, job, now)
    if state.outcome_record is not None:
        ours = shown.outcome.version != own.old_outcome
        ours = ours or state.history.took_part == job.incarnation
        return Decision(state) if ours else begin_incarnation(state, now)
    if state.policy.in_place and not job.in_place and not state.stranger:
        return _write_job(state, replace(job, in_place=True), now)
    last = state.round_record
    if last is not None:
        return _lead_round(state, job, last, now)
    if state.policy.secret and not job.secret:
        # An older version began it, and has left: nodes of this one could not prove themselves.
        return _write_job(state, replace(job, secret=state.policy.secret), now)
    return begin_incarnation(state, now) if state.stranger else form_first(state, job, now)


def _write_job(state: NodeState, job: JobRecord, now: float) -> Decision:
    expects = (Expect(JOB, state.shown.job.version),)
    return write(state, JOB, Transaction(expects, (Put(JOB, job.encode()),)), now)


def _lead_round(state: NodeState, job: JobRecord, record: RoundRecord, now: float) -> Decision:
    """Leads a job that has a round."""
    if not record.whole and state.shown.round.unreadable:
        decision, found = call_roll(state, job, record, now)
        if found is None:
            return decision
        last = last_round(decision.state, job, found, now)
        return decision.followed_by(_go_on(decision.state, last, now))
    if not record.whole:
        return ask_for_members(state, record, now)
    last = last_round(state, job, record, now)
    if record.rank_of(state.me) < 0 and all(
        last.statuses[member.node] in OVER or member.node not in state.shown.peers
        for member in record.members
    ):
        return begin_incarnation(state, now)
    state = state.stop(Timer.OLD_LIFE_SILENT, Timer.ROLL_CALL)
    if all(status == MemberStatus.ENDED_WELL for status in last.statuses.values()):
        outcome = OutcomeRecord(job.incarnation, True, EXIT_DONE, "the script ended well on all")
        return end_job(state, outcome, now)
    ordered = Decision(state)
    if state.switch_record is None or not state.switch_record.broken:
        at_once = _go_on_at_once(state, last, now)
        if at_once is not None:
            return at_once
        ordered = _order_out(state, last, now)
    state = ordered.state
    if state.switch_record is None:
        return ordered.followed_by(clean_up_parts(state.stop(Timer.GATHERING), last, now))
    return ordered.followed_by(_gather(state, last, now))


# ---------------------------------------------------------------- the order to leave a round


def _order_out(state: NodeState, last: LastRound, now: float) -> Decision:
    """Orders all members to leave a round that broke, or that should change."""
    if _with_more_workers(state, last):
        state = state.start(Timer.WORKERS_BACK, now)
    else:
        state = state.stop(Timer.WORKERS_BACK)
    wake = NEVER
    if any(record_of(state, member.node) is None for member in last.round.members):
        wake = state.absence_counts_at if now < state.absence_counts_at else NEVER
    reason = broken = _why_broken(state, last)
    grows = False
    if not broken and not (reason := _why_less(state, last)):
        reason, ripe = _why_more(state, last, now)
        wake, grows = min(wake, ripe), True
    if not broken and (not reason or _stands(state.switch_record, grows=grows)):
        return Decision(state, wake=wake)
    number, incarnation = last.round.number, last.round.incarnation
    switch = SwitchRecord(number, incarnation, bool(broken), reason, grows=grows)
    return _write_switch(state, switch, now, reason).by(wake)


def _stands(order: SwitchRecord | None, *, grows: bool) -> bool:
    """Whether a planned order of this kind would say nothing new.

    An order to grow can wait for a step that is far away, where ranks train alone; a node that goes
    cannot, and needs the others to come to a common step with it now.
    """
    return order is not None and (grows or not order.grows)


def _go_on_at_once(state: NodeState, last: LastRound, now: float) -> Decision | None:
    """What follows a broken round that all members have left already: they need no order for it.

    Returns:
        None: an order is to be written, for members to read it, or for a leader that comes after
        this one to know what is waited for.
    """
    if any(status not in (MemberStatus.BACK, *OVER) for status in last.statuses.values()):
        return None
    reason = _why_broken(state, last)
    if not reason:
        return None
    if state.pending(OWN, now):
        return Decision(state, wake=state.in_flight[OWN].until, reason="our key is being written")
    shown = state.shown.switch
    order = SwitchRecord(last.round.number, last.round.incarnation, True, reason)
    ordered = replace(state.shown, switch=replace(shown, record=order))
    decision = _gather(replace(state, shown=ordered), last, now)
    if not decision.actions:
        return None
    as_it_is = replace(decision.state.shown, switch=shown)
    return replace(decision, state=replace(decision.state, shown=as_it_is))


def _write_switch(state: NodeState, switch: SwitchRecord, now: float, reason: str) -> Decision:
    shown = state.shown
    expects = (Expect(SWITCH, shown.switch.version), Expect(ROUND, shown.round.version))
    order = Transaction(expects, (Put(SWITCH, switch.encode()),))
    return write(state, SWITCH, order, now, reason)


def _why_broken(state: NodeState, last: LastRound) -> str:
    planned = state.switch_record is not None
    for member in last.round.members:
        status = last.statuses[member.node]
        if status in LOST_STATUSES:
            return loss_message(state, member)
        if status not in (MemberStatus.BACK, MemberStatus.LEFT):
            continue
        fault = fault_of_member(state, member, last.round)
        if fault is not None and (fault.kind not in (ASKED, PLANNED) or not planned):
            return f"{fault.reason} on {member.name}"
        # A node that goes without a report on this round was not in it: no rank can connect to it.
        if fault is None and (not planned or not _has_left(state, member.node, last.round)):
            return f"{called(member.name)} left"
    order, left = state.switch_record, last.with_status(MemberStatus.BACK, *OVER)
    if left and order and order.grows and _is_over(state, last):
        # Some do not obey the order, as they have nothing to train: they must hear of the others.
        return f"{called(left[0].name)} left before its script had ended"
    return ""


def _has_left(state: NodeState, node: str, last: RoundRecord) -> bool:
    record = record_of(state, node)
    return record is not None and record.left >= last.number


def _have_returned(state: NodeState, members: Iterable[Member], last: RoundRecord) -> bool:
    """Whether one of them has said that ``train`` is over on all ranks of this round."""
    records = (record_of(state, member.node) for member in members)
    return any(record is not None and has_returned(record, last) for record in records)


def _why_less(state: NodeState, last: LastRound) -> str:
    """Why the round should go on with fewer nodes, "" if it should not."""
    for member in last.with_status(MemberStatus.RUNNING):
        record = record_of(state, member.node)
        if record and record.status == LEAVING:
            return f"{called(member.name)} was asked to leave"
    if last.round.size > last.job.max_nodes and not _is_over(state, last):
        return f"the job was scaled to at most {last.job.max_nodes} nodes"
    return ""


def _is_over(state: NodeState, last: LastRound) -> bool:
    """Whether nothing is left to train: a change would only have what follows run again."""
    if MemberStatus.ENDED_WELL in last.statuses.values():
        return True
    return _have_returned(state, last.round.members, last.round)


def _why_more(state: NodeState, last: LastRound, now: float) -> tuple[str, float]:
    """Why more should take part, "" if they should not; and when that may be otherwise."""
    if _is_over(state, last):
        return "", NEVER
    growth, grows_at = _why_grow(state, last, now)
    if growth:
        return growth, grows_at
    workers, back_at = _which_workers_are_back(state, last, now)
    return workers, min(grows_at, back_at)


def _with_more_workers(state: NodeState, last: LastRound) -> list[str]:
    """The members that have more workers by now than they take part with."""
    return [
        member.name
        for member in last.round.members
        if (record := record_of(state, member.node)) and record.workers > member.workers
    ]


def _which_workers_are_back(state: NodeState, last: LastRound, now: float) -> tuple[str, float]:
    """The members that have more workers by now, after a short wait for those that are to come."""
    names = _with_more_workers(state, last)
    if not names:
        return "", NEVER
    if not _workers_are_missing(state):
        return f"a worker of {listed(names)} is back", NEVER
    due = state.timers.get(Timer.WORKERS_BACK, now) + state.policy.join_batch_in_place
    return ("", due) if now < due else (f"a worker of {listed(names)} is back", NEVER)


def _workers_are_missing(state: NodeState) -> bool:
    """Whether a node of the job has fewer workers than it could have, or does not say."""
    assert state.own.record is not None
    peers = (peer.record for peer in state.shown.peers.values() if eligible(state, peer))
    return any(
        record.status == IN and not 0 < record.full <= record.workers
        for record in (state.own.record, *peers)
    )


def _why_grow(state: NodeState, last: LastRound, now: float) -> tuple[str, float]:
    """The nodes that join, after a short wait for further ones; and when to look again."""
    job, members = last.job, last.round.members
    wake = next_trial(state, now)
    here = [record for one in members if (record := record_of(state, one.node))]
    fresh = _reaching(here, joiners(state, last.round, now))
    chosen = choose_connected(
        [*here, *fresh], len(here), lambda count: largest_world(job, count), job.min_nodes
    )
    kept = {record.node for record in chosen}
    fresh = [record for record in fresh if record.node in kept]
    size = largest_world(job, last.round.size + len(fresh))
    if size <= last.round.size or any(record.node not in kept for record in here):
        return "", wake
    peers = state.shown.peers
    seen = [peers[node.node].seen for node in fresh if node.node in peers]
    batch = state.policy.join_batch_in_place if job.in_place else state.policy.timeouts.join_batch
    due = max([state.shown.round.seen, *seen[:1]]) + batch
    # Where new nodes come, more of them often do; of those that were there before it is known.
    expected = not _are_back(fresh, last.round) or _workers_are_missing(state)
    if size < job.max_nodes and expected and now < due:
        return "", min(wake, due)
    return _who_comes(fresh[: size - last.round.size], last.round), wake


def _reaching(here: list[NodeRecord], fresh: list[NodeRecord]) -> list[NodeRecord]:
    """The nodes that reach all members: only these are worth a comparison with one another."""
    members = {record.node for record in here}
    missed = {node for record in here for node in record.unreachable}
    return [
        node for node in fresh if node.node not in missed and members.isdisjoint(node.unreachable)
    ]


def _are_back(nodes: list[NodeRecord], last: RoundRecord) -> bool:
    """Whether all of them left an earlier round of the job, and stayed."""
    return all(node.left and node.incarnation == last.incarnation for node in nodes)


def _who_comes(nodes: list[NodeRecord], last: RoundRecord) -> str:
    """Which nodes join, for people; a node that left an earlier round and stayed "is back"."""
    one = len(nodes) == 1
    names = listed([node.name for node in nodes])
    subject = called(names) if one else f"nodes {names}"
    if _are_back(nodes, last):
        return f"{subject} {'is' if one else 'are'} back"
    return f"{subject} {'joins' if one else 'join'}"


# ---------------------------------------------------------------- waiting for the members


def _gather(state: NodeState, last: LastRound, now: float) -> Decision:
    """Waits until every member of the last round is back or known to be gone."""
    state = state.start(Timer.GATHERING, now)
    due = state.timers[Timer.GATHERING] + state.policy.timeouts.rejoin_timeout
    missing = [
        member
        for member in last.with_status(MemberStatus.RUNNING, MemberStatus.ENDED_WELL)
        if last.statuses[member.node] == MemberStatus.RUNNING or _is_there(state, member.node)
    ]
    if missing and now < due:
        return _await(state, missing, now).by(due)
    order = state.switch_record
    if order and order.grows and not order.broken and _have_returned(state, missing, last.round):
        return Decision(state, reason="train is over: waiting for the script to end")
    survey, known = _order_survey(state, last, now)
    return survey.followed_by(_go_on(survey.state, last, now)) if known else survey


def _await(state: NodeState, missing: list[Member], now: float) -> Decision:
    """Probes the members of a broken round that are not back."""
    waits_until = state.absence_counts_at if now < state.absence_counts_at else NEVER
    reason = f"waiting for {listed([member.name for member in missing])}"
    waiting = Decision(state, wake=waits_until, reason=reason)
    assert state.switch_record is not None  # else the wait would end at once
    if not state.switch_record.broken:
        return waiting
    slowdown = probe_slowdown(len(missing))
    first = state.timers[Timer.GATHERING] + slowdown * state.policy.probe_after
    if now < first:
        return waiting.by(first)
    others = [member for member in missing if member.node != state.me]
    policy = state.policy
    soon = FirstProbes(state.timers[Timer.GATHERING], slowdown * policy.probe_after)
    asked = send_probes(state, others, slowdown * policy.probe_every, now, soon)
    return waiting.followed_by(asked)


def _go_on(state: NodeState, last: LastRound, now: float) -> Decision:
    """What follows from a broken round once it waits for no member."""
    cost = cost_of(state, last)
    if cost.ends:
        cause, members = cost.cause, last.round.members
        where = next(
            (m.name for m in members if fault_of_member(state, m, last.round) == cause), ""
        )
        usage = cause is not None and is_usage_error(cause)
        code = EXIT_USAGE if usage else EXIT_FAILED
        outcome = OutcomeRecord(last.job.incarnation, False, code, cost.reason, cause, where)
        return end_job(state, outcome, now)
    due = state.timers[Timer.GATHERING] + cost.delay
    if now < due:
        text = f"{cost.reason}; next try in {cost.delay:g} s, as there was no progress"
        here = sum(status not in OVER for status in last.statuses.values())
        return wait(state, text, here, until=due)
    return form_next(state, last, cost, now)


def _order_survey(state: NodeState, last: LastRound, now: float) -> tuple[Decision, bool]:
    """Asks the members which nodes they reach, as no report says why the round broke.

    Returns:
        What follows, and whether all have answered, or their time is over.
    """
    switch = state.switch_record
    back = [member.node for member in last.with_status(MemberStatus.BACK)]
    if switch is None or not switch.broken or len(back) < 2:
        return Decision(state), True
    if not switch.survey:
        if is_cause_known(state, last):
            return Decision(state), True
        order = replace(switch, survey=True)
        return _write_switch(state, order, now, "asking the members which nodes they reach"), False
    state = state.start(Timer.SURVEY_ORDERED, now)
    # Each member probes all others, which takes longer the more there are.
    longest = state.policy.survey_timeout + last.round.size // _PROBES_A_SECOND
    due = state.timers[Timer.SURVEY_ORDERED] + longest
    open_ = [node for node in back if not has_checked(record_of(state, node), last.round)]
    if open_ and now < due:
        reason = "waiting for members to say which nodes they reach"
        return Decision(state, wake=due, reason=reason), False
    return Decision(state), True


def _is_there(state: NodeState, node: str) -> bool:
    record = record_of(state, node)
    return record is not None and record.status != GONE
