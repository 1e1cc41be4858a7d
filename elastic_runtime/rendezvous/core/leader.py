"""What the leader decides for all: pure.

The leader is the oldest node that is not known to be dead. It is never elected, and nothing else
depends on it: whoever finds the older ones dead is the leader. Each of its writes is fenced by
the version of what it replaces, so two nodes that both think that they lead cannot both succeed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from elastic_runtime.protocol.records import (
    ASKED,
    DRAINING,
    GONE,
    JOB,
    PLANNED,
    ROUND,
    SWITCH,
    JobRecord,
    OutcomeRecord,
    RoundRecord,
    SwitchRecord,
    called,
    listed,
)
from elastic_runtime.rendezvous.core.actions import crowded
from elastic_runtime.rendezvous.core.formation.failure_budget import USAGE
from elastic_runtime.rendezvous.core.formation.member_status import (
    BACK,
    DEAD,
    ENDED_WELL,
    LEASE_ENDED,
    LEFT,
    OVER,
    RUNNING,
    fault_of,
    is_explained,
    leader_of,
    loss,
    record_of,
    standings_of,
    verdict_on,
)
from elastic_runtime.rendezvous.core.formation.parts_cleanup import tidy
from elastic_runtime.rendezvous.core.formation.reachability import together
from elastic_runtime.rendezvous.core.formation.roll_call import call_roll
from elastic_runtime.rendezvous.core.formation.round_formation import (
    end,
    fitting,
    form_first,
    form_next,
    has_checked,
    joiners,
)
from elastic_runtime.rendezvous.core.incarnation import create_job, succeed_old_life
from elastic_runtime.rendezvous.store_contract import Expect, Put, Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import State

# How many members a node looks for in a second, at least.
_PROBES_A_SECOND = 500
# Moments that only a leader refers to: they mean nothing after it has not led for a while.
_LEADERS = (
    *("gather", "return", "call", "island", "ghosts", "short", "no job", "foreign", "check"),
    *("roll", "tidy"),
)


def lead(state: State, plan: Plan, now: float) -> State:
    """Decides for the job, if this node leads. Appends to ``plan`` and returns the new state."""
    record = state.record
    if record is None or state.excluded or not (state.connected and state.snapshot and state.wide):
        return state
    if state.stored is None or record.status == GONE or leader_of(state) is not None:
        return state.unmarked(*_LEADERS)
    if state.remembering(now):
        plan.wake_at(state.forgot_at + state.policy.settle)
        return state.marked("no job", now)
    for tag in (JOB, ROUND):
        if state.held(tag, now):  # what was written last is not seen yet
            plan.wake_at(state.holds[tag])
            return state
    job = state.job_record
    if job is None:
        return create_job(state, plan, now)
    if state.job.unreadable:
        put = Put(JOB, job.encode())
        return plan.apply(state, JOB, Transaction((Expect(JOB, state.job.version),), (put,)), now)
    if state.outcome_record is not None:
        ours = state.outcome.version != state.old_outcome or state.took_part == job.incarnation
        return state if ours else succeed_old_life(state, plan, now)
    if state.policy.in_place and not job.in_place and not state.stranger:
        put = Put(JOB, replace(job, in_place=True).encode())
        return plan.apply(state, JOB, Transaction((Expect(JOB, state.job.version),), (put,)), now)
    last = state.round_record
    if last is None and state.policy.secret and not job.secret:
        # An older version began it, and has left: nodes of this one could not prove themselves.
        put = Put(JOB, replace(job, secret=state.policy.secret).encode())
        return plan.apply(state, JOB, Transaction((Expect(JOB, state.job.version),), (put,)), now)
    if last is None:
        if state.stranger:
            return succeed_old_life(state, plan, now)
        return form_first(state, job, plan, now)
    if not last.whole and state.round.unreadable:
        state, found = call_roll(state, job, last, plan, now)
        if found is None:
            return state
        return _go_on(state, job, found, standings_of(state, found, now), plan, now)
    if not last.whole:
        return plan.know_all(state, last, now)
    standings = standings_of(state, last, now)
    if last.rank_of(state.me) < 0 and all(
        standings[member.node] in OVER or member.node not in state.peers for member in last.members
    ):
        return succeed_old_life(state, plan, now)
    return _run(state.unmarked("ghosts", "roll"), job, last, standings, plan, now)


def _run(
    state: State,
    job: JobRecord,
    last: RoundRecord,
    standings: Mapping[str, str],
    plan: Plan,
    now: float,
) -> State:
    """Leads a job that has a round."""
    if all(how == ENDED_WELL for how in standings.values()):
        outcome = OutcomeRecord(job.incarnation, True, EXIT_DONE, "the script ended well on all")
        return end(state, outcome, plan, now)
    if state.switch_record is None or not state.switch_record.broken:
        state = _announce(state, job, last, standings, plan, now)
    if state.switch_record is None:
        return tidy(state.unmarked("gather"), job, last, plan, now)
    return _gather(state, job, last, standings, plan, now)


# ---------------------------------------------------------------- the order to leave a round


def _announce(
    state: State,
    job: JobRecord,
    last: RoundRecord,
    standings: Mapping[str, str],
    plan: Plan,
    now: float,
) -> State:
    """Orders everybody out of a round that broke, or that should change."""
    returning = _returning(state, last)
    state = state.marked("return", now) if returning else state.unmarked("return")
    absent = any(record_of(state, member.node) is None for member in last.members)
    if absent and now < state.settled_at:
        plan.wake_at(state.settled_at)
    broken = _why_broken(state, last, standings)
    planned = "" if broken else _why_change(state, job, last, standings, plan, now)
    if not broken and (not planned or state.switch_record is not None):
        return state
    plan.reason = broken or planned
    switch = SwitchRecord(last.number, last.incarnation, bool(broken), broken or planned)
    put = Put(SWITCH, switch.encode())
    expects = (Expect(SWITCH, state.switch.version), Expect(ROUND, state.round.version))
    return plan.apply(state, SWITCH, Transaction(expects, (put,)), now)


def _why_broken(state: State, last: RoundRecord, standings: Mapping[str, str]) -> str:
    planned = state.switch_record is not None
    for member in last.members:
        how = standings[member.node]
        if how in (DEAD, LEASE_ENDED):
            return loss(state, member, how)
        if how not in (BACK, LEFT):
            continue
        fault = fault_of(state, member, last)
        if fault is not None and (fault.kind not in (ASKED, PLANNED) or not planned):
            return f"{fault.reason} on {member.name}"
        # Who goes without a word about this round was not in it: no rank gets past connecting.
        if fault is None and (not planned or not _has_left(state, member.node, last)):
            return f"{called(member.name)} left"
    return ""


def _has_left(state: State, node: str, last: RoundRecord) -> bool:
    record = record_of(state, node)
    return record is not None and record.left >= last.number


def _why_change(
    state: State,
    job: JobRecord,
    last: RoundRecord,
    standings: Mapping[str, str],
    plan: Plan,
    now: float,
) -> str:
    for member in last.members:
        record = record_of(state, member.node)
        if record and record.status == DRAINING and standings[member.node] == RUNNING:
            return f"{called(member.name)} was asked to leave"
    if last.size > job.max_nodes:
        return f"the job was scaled to at most {job.max_nodes} nodes"
    if ENDED_WELL in standings.values():
        return ""  # the end has begun: nobody is let in any more
    return _ripe_growth(state, job, last, plan, now) or _ripe_return(state, last, plan, now)


def _returning(state: State, last: RoundRecord) -> list[str]:
    """The members that have more workers by now than they take part with."""
    return [
        member.name
        for member in last.members
        if (record := record_of(state, member.node)) and record.workers > member.workers
    ]


def _ripe_return(state: State, last: RoundRecord, plan: Plan, now: float) -> str:
    """Who has more workers by now, once more of them were waited for for a little while."""
    names = _returning(state, last)
    if not names:
        return ""
    due = state.marks.get("return", now) + state.policy.batch_in_place
    if now < due:
        plan.wake_at(due)
        return ""
    return f"a worker of {listed(names)} is back"


def _ripe_growth(state: State, job: JobRecord, last: RoundRecord, plan: Plan, now: float) -> str:
    """Who joins, once joiners were gathered for a little while."""
    for _, until in state.suspects.values():
        if until > now:
            plan.wake_at(until)
    here = [record for one in last.members if (record := record_of(state, one.node))]
    # Who does not reach a member stays out: to compare it with all others would be in vain.
    members = {record.node for record in here}
    missed = {node for record in here for node in record.unreachable}
    fresh = [
        node
        for node in joiners(state, last, now)
        if node.node not in missed and members.isdisjoint(node.unreachable)
    ]
    chosen = together([*here, *fresh], len(here), lambda n: fitting(job, n), job.min_nodes)
    kept = {record.node for record in chosen}
    fresh = [record for record in fresh if record.node in kept]
    size = fitting(job, last.size + len(fresh))
    if size <= last.size or any(record.node not in kept for record in here):
        return ""
    seen = [state.peers[node.node].seen for node in fresh if node.node in state.peers]
    batch = state.policy.batch_in_place if job.in_place else state.policy.timeouts.batch
    due = max([state.round.seen, *seen[:1]]) + batch
    if size < job.max_nodes and now < due:
        plan.wake_at(due)
        return ""
    return _who_comes(fresh[: size - last.size], last)


def _who_comes(nodes: list[NodeRecord], last: RoundRecord) -> str:
    """Nodes that are let in, for people: one that left a round of this job and stayed is back."""
    one = len(nodes) == 1
    names = listed([node.name for node in nodes])
    subject = called(names) if one else f"nodes {names}"
    if all(node.left and node.incarnation == last.incarnation for node in nodes):
        return f"{subject} {'is' if one else 'are'} back"
    return f"{subject} {'joins' if one else 'join'}"


# ---------------------------------------------------------------- waiting for the members


def _gather(
    state: State,
    job: JobRecord,
    last: RoundRecord,
    standings: Mapping[str, str],
    plan: Plan,
    now: float,
) -> State:
    """Waits until every member of the last round is back or known to be gone."""
    state = state.marked("gather", now)
    begun = state.marks["gather"]
    missing = [
        member
        for member in last.members
        if standings[member.node] == RUNNING
        or (standings[member.node] == ENDED_WELL and _is_there(state, member.node))
    ]
    if missing and now < begun + state.policy.timeouts.rejoin_timeout:
        plan.reason = f"waiting for {listed([member.name for member in missing])}"
        plan.wake_at(begun + state.policy.timeouts.rejoin_timeout)
        if now < state.settled_at:
            plan.wake_at(state.settled_at)
        assert state.switch_record is not None
        if not state.switch_record.broken:
            return state
        crowd = crowded(len(missing))
        if now < begun + crowd * state.policy.probe_after:
            plan.wake_at(begun + crowd * state.policy.probe_after)
            return state
        for member in missing:
            if member.node != state.me:
                state = plan.probe(state, member, crowd * state.policy.probe_every, now)
        return state
    state, known = _survey(state, last, standings, plan, now)
    return _go_on(state, job, last, standings, plan, now) if known else state


def _go_on(
    state: State,
    job: JobRecord,
    last: RoundRecord,
    standings: Mapping[str, str],
    plan: Plan,
    now: float,
) -> State:
    """What follows from a round of which nobody is waited for any more."""
    verdict = verdict_on(state, last, standings)
    if verdict.ends:
        cause = verdict.cause
        where = next((m.name for m in last.members if fault_of(state, m, last) == cause), "")
        usage = cause is not None and cause.signature.startswith(USAGE)
        code = EXIT_USAGE if usage else EXIT_FAILED
        outcome = OutcomeRecord(job.incarnation, False, code, verdict.reason, cause, where)
        return end(state, outcome, plan, now)
    due = state.marks["gather"] + verdict.delay
    if now < due:
        plan.wake_at(due)
        text = f"{verdict.reason}; next try in {verdict.delay:g} s, as there was no progress"
        here = sum(how not in OVER for how in standings.values())
        return plan.wait(state, text, here)
    return form_next(state, job, last, standings, verdict, plan, now)


def _survey(
    state: State, last: RoundRecord, standings: Mapping[str, str], plan: Plan, now: float
) -> tuple[State, bool]:
    """Has the members say whom they reach, as nobody knows why the round broke.

    Returns:
        The new state, and whether all have said it, or had the time to.
    """
    switch = state.switch_record
    back = [member.node for member in last.members if standings[member.node] == BACK]
    if switch is None or not switch.broken or len(back) < 2:
        return state, True
    if not switch.survey and is_explained(state, last, standings):
        return state, True
    if not switch.survey:
        plan.reason = "asking the members whom they reach"
        put = Put(SWITCH, replace(switch, survey=True).encode())
        expects = (Expect(SWITCH, state.switch.version), Expect(ROUND, state.round.version))
        return plan.apply(state, SWITCH, Transaction(expects, (put,)), now), False
    state = state.marked("check", now)
    # Each looks for all others, which takes longer the more there are.
    due = state.marks["check"] + state.policy.check + last.size // _PROBES_A_SECOND
    open_ = [node for node in back if not has_checked(record_of(state, node), last)]
    if open_ and now < due:
        plan.reason = "waiting for members to say whom they reach"
        plan.wake_at(due)
        return state, False
    return state, True


def _is_there(state: State, node: str) -> bool:
    record = record_of(state, node)
    return record is not None and record.status != GONE
