"""When a node that is new may show itself: pure.

A joiner that sees the store but not the group would break the group for nothing, and a node of
another job must not be counted, let alone lead. So both find out first, without being seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.rendezvous.core.events import ALIVE, BUSY, SILENT
from elastic_runtime.rendezvous.core.formation.member_status import leader_of
from elastic_runtime.rendezvous.core.notices import Conflict, Prepare

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import JobRecord, Member, NodeRecord
    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.node_state import Peer, State
    from elastic_runtime.rendezvous.policy import Policy

# How often a joiner that cannot reach the group tries again, in seconds.
UNREACHABLE_PAUSE = 1.0
# For so long an answer to a probe says that a node is in reach, in seconds.
FRESH = 5.0


def may_register(state: State, plan: Plan, now: float) -> tuple[bool, State]:
    """Whether a node that was not seen before may write its key now."""
    if state.remembering(now) and state.took_part == "":
        # A running group says who it is first.
        plan.wake_at(state.forgot_at + state.policy.settle)
        return False, state
    job = state.job_record
    if job is not None and job.in_place and not (state.prepared or state.stranger):
        return False, state.tell(Prepare(), once="prepare")
    lead = leader_of(state)
    if lead is None:
        return True, state  # nobody is there who could be disturbed
    if _other_job(state, lead):
        return False, _await_other(state, lead, plan, now)
    if job is not None and state.policy.secret and not job.secret:
        text = f"the job was begun by an older version of elastic-runtime, on {lead.record.name}"
        return False, plan.wait(state, f"{text}: run one version on all nodes")
    return _reaches_group(state, lead, plan, now)


def _other_job(state: State, lead: Peer) -> bool:
    assert state.record is not None
    mine, job = state.record.settings, state.job_record
    if not mine:
        return False
    if job is None or not job.settings:
        return bool(lead.record.settings) and lead.record.settings != mine
    return job.settings != mine and lead.record.settings == job.settings


def _await_other(state: State, lead: Peer, plan: Plan, now: float) -> State:
    """Another job holds the run id, if it lives."""
    if state.outcome_record is not None:
        return plan.wait(state, f"the last job under this run id is ending on {lead.record.name}")
    answer = state.answers.get(lead.record.node)
    if answer in (ALIVE, BUSY):
        return state.tell(Conflict(_conflict_text(state, lead)), once="conflict")
    every = UNREACHABLE_PAUSE if answer == SILENT else state.policy.probe_every
    state = plan.probe(state, lead.record, every, now)
    if answer == SILENT:
        what = "a job of another version" if _other_version(state) else "another job"
        state = plan.wait(state, f"{what} may live under this run id on {lead.record.name}")
    return state


def _reaches_group(state: State, lead: Peer, plan: Plan, now: float) -> tuple[bool, State]:
    """A group needs all its pairs, so a newcomer has to reach every member, at the same time."""
    last = state.round_record
    if last is None or state.outcome_record is not None or last.rank_of(state.me) >= 0:
        return True, state
    ready = True
    silent: list[Member | NodeRecord] = []
    targets: dict[str, Member | NodeRecord] = {member.node: member for member in last.members}
    for target in (targets | {lead.record.node: lead.record}).values():
        answer = state.answers.get(target.node)
        fresh = state.heard.get(target.node, float("-inf")) > now - FRESH
        if not target.probe_port or target.node in state.dead:
            continue
        if answer in (ALIVE, BUSY) and fresh:
            continue
        ready = False
        if answer == SILENT:
            silent.append(target)
        state = plan.probe(state, target, UNREACHABLE_PAUSE, now)
    if silent:
        first, more = silent[0], f" and {len(silent) - 1} more" if silent[1:] else ""
        where = f"{first.address}:{first.probe_port}"
        state = plan.wait(state, f"cannot reach {first.name} at {where}{more}")
    return ready, state


def _conflict_text(state: State, lead: Peer) -> str:
    job = state.job_record
    where = f"led by {lead.record.name} at {lead.record.address}"
    if job and _other_version(state):
        return (
            f"another version of elastic-runtime: this node runs {_version(state.policy)}, the job "
            f"under this run id ({where}) {_version(job)}: install the same one on all nodes, or "
            "use another --run-id"
        )
    theirs = f"{job.entry} with {job.launch_min}:{job.launch_max} nodes" if job else "another job"
    policy = state.policy
    return (
        f"a live job under this run id runs {theirs} ({where}), this one is {policy.entry} with "
        f"{policy.min_nodes}:{policy.max_nodes} nodes: use the same settings or another --run-id"
    )


def _other_version(state: State) -> bool:
    """Whether the other job differs from this one in what nodes say to each other, at least.

    An older version did not write down which one it is: it is another one if nothing else differs.
    """
    job, policy = state.job_record, state.policy
    if job is None or job.protocol:
        return job is not None and job.protocol != policy.protocol
    theirs = (job.entry, job.launch_min, job.launch_max, job.node_unit)
    return theirs == (policy.entry, policy.min_nodes, policy.max_nodes, policy.node_unit)


def _version(of: JobRecord | Policy) -> str:
    return f"{of.release} (protocol {of.protocol})" if of.protocol else "an older one"
