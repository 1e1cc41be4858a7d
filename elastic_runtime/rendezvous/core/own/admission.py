"""When a new node may register: pure.

A joiner that reaches the store but not the group would break the group for nothing, and a node of
another job must not be counted, let alone lead. So both find out first, before they register.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.limits import PROBE_ANSWER_FRESH, UNREACHABLE_PAUSE
from elastic_runtime.protocol.records import GONE
from elastic_runtime.rendezvous.core.formation.member_status import has_left, leader_of
from elastic_runtime.rendezvous.core.membership_events import ALIVE, BUSY, SILENT
from elastic_runtime.rendezvous.core.node_decision import Decision, look, send_probes, wait
from elastic_runtime.rendezvous.core.notices import Conflict, Prepare

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import JobRecord, NodeRecord
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState, Peer
    from elastic_runtime.rendezvous.policy import Policy


def may_register(state: NodeState, now: float) -> tuple[bool, Decision]:
    """Whether a node that has not registered yet may write its key now, and what it does first."""
    if now < state.remembers_at and state.history.took_part == "":
        # A running group writes its round first.
        return False, Decision(state, wake=state.remembers_at)
    job = state.job_record
    if job is not None and job.in_place and not (state.own.workers_ready or state.stranger):
        return False, Decision(state.with_notice(Prepare(), once="prepare"))
    leader = leader_of(state)
    if leader is None:
        return True, Decision(state)  # there is no node that could be disturbed
    if _other_job(state, leader):
        return False, _await_other(state, leader, now)
    if job is not None and state.policy.secret and not job.secret:
        begun_by = f"an older version of elastic-runtime, on {leader.record.name}"
        return False, wait(state, f"the job was begun by {begun_by}: run one version on all nodes")
    return _reaches_group(state, leader, now)


def _other_job(state: NodeState, leader: Peer) -> bool:
    assert state.own.record is not None
    mine, job = state.own.record.settings, state.job_record
    if not mine:
        return False
    if job is None or not job.settings:
        return bool(leader.record.settings) and leader.record.settings != mine
    return job.settings != mine and leader.record.settings == job.settings


def _await_other(state: NodeState, leader: Peer, now: float) -> Decision:
    """Another job has the run id, if one of its nodes is alive."""
    name = leader.record.name
    if state.outcome_record is not None:
        return wait(state, f"the previous job with this run id is ending on {name}")
    answer = state.reach.answers.get(leader.record.node)
    if answer in (ALIVE, BUSY):
        return Decision(state.with_notice(Conflict(_conflict_text(state, leader)), once="conflict"))
    every = UNREACHABLE_PAUSE if answer == SILENT else state.policy.probe_every
    asked = send_probes(state, [leader.record], every, now)
    if answer != SILENT:
        return asked
    what = "a job of another version" if _other_version(state) else "another job"
    return asked.followed_by(
        wait(asked.state, f"{what} may be running under this run id on {name}")
    )


def _reaches_group(state: NodeState, leader: Peer, now: float) -> tuple[bool, Decision]:
    """A group needs all its pairs, so a newcomer has to reach every member, at the same time.

    But for those who are over: it may be that the others wait for nobody but this newcomer.
    """
    last, reach = state.round_record, state.reach
    if last is None or state.outcome_record is not None or last.rank_of(state.me) >= 0:
        return True, Decision(state)
    members: dict[str, Member | NodeRecord] = {
        member.node: member
        for member in last.members
        if not _is_over(state, member.node, last, leader)
    }
    open_ = [
        target
        for target in (members | {leader.record.node: leader.record}).values()
        if target.probe_port and target.node not in reach.dead and not _in_reach(state, target, now)
    ]
    asked = send_probes(state, open_, UNREACHABLE_PAUSE, now)
    silent = [target for target in open_ if reach.answers.get(target.node) == SILENT]
    if silent:
        first, more = silent[0], f" and {len(silent) - 1} more" if silent[1:] else ""
        text = f"cannot reach {first.name} at {first.address}:{first.probe_port}{more}"
        asked = asked.followed_by(wait(asked.state, text))
        asked = asked.followed_by(_look_at_all(asked.state))
    return not open_, asked


def _is_over(state: NodeState, node: str, last: RoundRecord, leader: Peer) -> bool:
    """Whether a member of the last round can be in no further one, and need not be reached.

    It has said goodbye; or its key is gone, and the round is over. While the round goes on, a
    member that only the store has lost may still train in it.
    """
    if (peer := state.shown.peers.get(node)) is not None:
        return peer.record.status == GONE
    return state.shown.wide and has_left(leader.record, last)


def _look_at_all(state: NodeState) -> Decision:
    """Follows all nodes, as the key of a member that does not answer says whether it is over."""
    asked, without = state.shown.asked
    if state.shown.wide or asked:
        return Decision(state)
    return look(state, wide=True, without=without)


def _in_reach(state: NodeState, target: Member | NodeRecord, now: float) -> bool:
    """Whether a node has answered lately."""
    answered = state.reach.answered.get(target.node, float("-inf"))
    return (
        state.reach.answers.get(target.node) in (ALIVE, BUSY)
        and answered > now - PROBE_ANSWER_FRESH
    )


def _conflict_text(state: NodeState, leader: Peer) -> str:
    job = state.job_record
    where = f"led by {leader.record.name} at {leader.record.address}"
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


def _other_version(state: NodeState) -> bool:
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
