"""Which node leads, the status of each member of the last round, and what that costs: pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import (
    ASKED,
    CUT_OFF,
    DONE,
    GONE,
    IN,
    LEAVING,
    LOST,
    FaultReport,
    NodeRecord,
    called,
    node_key,
)
from elastic_runtime.rendezvous.core.formation.failure_budget import (
    RoundCost,
    assess,
    names_cause,
)
from elastic_runtime.rendezvous.core.formation.reachability import cut_message, severed_pairs
from elastic_runtime.rendezvous.core.membership_events import OTHER, REFUSED, REPLACED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.protocol.records import JobRecord
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState, Peer


class MemberStatus(Enum):
    """The status of a member of the last round."""

    RUNNING = "running"  # as far as we know
    BACK = "back"  # its workers have ended, it wants to continue
    ENDED_WELL = "done"
    LEFT = "left"  # said goodbye
    DEAD = "dead"  # proven
    LEASE_ENDED = "absent"


# No node waits for these any longer; the lost ones have not said goodbye.
OVER = (MemberStatus.LEFT, MemberStatus.DEAD, MemberStatus.LEASE_ENDED)
LOST_STATUSES = (MemberStatus.DEAD, MemberStatus.LEASE_ENDED)
_PROOF_MESSAGES = {
    REFUSED: "its port refuses",
    OTHER: "another process answers there",
    REPLACED: "another node has its name by now",
}


def eligible(state: NodeState, peer: Peer) -> bool:
    """Whether this node may lead: it is not known to be dead, and has not said goodbye."""
    return peer.record.status != GONE and peer.record.node not in state.reach.dead


def has_left(record: NodeRecord, last: RoundRecord) -> bool:
    """Whether a node has left this round, as far as its record says."""
    return record.incarnation == last.incarnation and record.left >= last.number


def has_returned(record: NodeRecord, last: RoundRecord) -> bool:
    """Whether a node says that ``train`` is over on all ranks of this round."""
    return record.returned == last.number and record.incarnation == last.incarnation


def leader_of(state: NodeState) -> Peer | None:
    """The oldest other node that may lead, if it is older than we are; None if we lead."""
    ours = state.own.created if state.own.stored is not None else float("inf")
    older = [peer for peer in state.shown.peers.values() if peer.created <= ours]
    return min(filter(partial(eligible, state), older), key=lambda it: it.created, default=None)


def alone(state: NodeState) -> bool:
    """Whether it is certain that no other node takes part in the job."""
    sees_all = (
        state.contact.connected
        and state.shown.complete
        and state.shown.wide
        and state.own.stored is not None
    )
    return sees_all and not any(eligible(state, peer) for peer in state.shown.peers.values())


def accompanied(state: NodeState) -> bool:
    """Whether the job is known to have another node that was not asked to leave."""
    there = (peer for peer in state.shown.peers.values() if eligible(state, peer))
    return state.contact.connected and any(peer.record.status == IN for peer in there)


def record_of(state: NodeState, node: str) -> NodeRecord | None:
    """This node's own record, as far as it has been read back."""
    if state.own.record is not None and node == state.me:
        return state.own.record
    peer = state.shown.peers.get(node)
    return peer.record if peer else None


@dataclass(frozen=True, slots=True)
class LastRound:
    """The last round of a job, as its leader sees it.

    Attributes:
        job: the job.
        round: the round, with all members that are known.
        statuses: theirs, by node.
    """

    job: JobRecord
    round: RoundRecord
    statuses: Mapping[str, MemberStatus]

    def with_status(self, *wanted: MemberStatus) -> list[Member]:
        """The members with one of these statuses."""
        return [one for one in self.round.members if self.statuses[one.node] in wanted]


def last_round(state: NodeState, job: JobRecord, last: RoundRecord, now: float) -> LastRound:
    """The last round with the status of each of its members."""
    statuses = {member.node: status_of(state, member, last, now) for member in last.members}
    return LastRound(job, last, statuses)


def status_of(state: NodeState, member: Member, last: RoundRecord, now: float) -> MemberStatus:
    """The status of a member of the last round."""
    node = member.node
    record = record_of(state, node)
    # What it has said last counts more than a port that refuses since.
    if node in state.reach.dead and (record is None or record.status != GONE):
        return MemberStatus.DEAD
    if record is not None:
        return _said_status(record, last)
    if state.history.ended_well.get(node) == last.number:
        return MemberStatus.ENDED_WELL
    # If it is alive, it is about to write its key again: the store lost it, or it is unreadable.
    unreadable = state.shown.unreadable.get(node_key(node), float("-inf"))
    if now - max(state.contact.regained_at, unreadable) < state.policy.settle:
        return MemberStatus.RUNNING
    return MemberStatus.LEASE_ENDED


def _said_status(record: NodeRecord, last: RoundRecord) -> MemberStatus:
    """The status of a member by its own record."""
    ours = record.incarnation == last.incarnation
    if ours and record.left >= last.number:
        return MemberStatus.LEFT if record.status == GONE else MemberStatus.BACK
    well = ours and record.done_round == last.number
    if record.status == GONE:
        return MemberStatus.ENDED_WELL if well else MemberStatus.LEFT
    return MemberStatus.ENDED_WELL if well and record.status == DONE else MemberStatus.RUNNING


def loss_message(state: NodeState, member: Member) -> str:
    """How a member was lost, for people."""
    if _went_as_asked(state, member):
        return f"{called(member.name)} was asked to leave"
    proof = state.reach.dead.get(member.node)
    how = _PROOF_MESSAGES[proof] if proof else "its lease has ended"
    return f"{called(member.name)} lost: {how}"


def _went_as_asked(state: NodeState, member: Member) -> bool:
    """Whether it was asked to leave and its port refuses: its goodbye may come a moment later."""
    record = record_of(state, member.node)
    asked = record is not None and record.status == LEAVING
    return asked and state.reach.dead.get(member.node) == REFUSED


def cost_of(state: NodeState, last: LastRound) -> RoundCost:
    """What the last round costs, now that it is over."""
    switch = state.switch_record
    reports = _reports(state, last)
    members = last.round.members
    here = [record for member in members if (record := record_of(state, member.node))]
    pairs = severed_pairs(here)
    cut = cut_message(pairs) if pairs else ""
    return assess(
        last.round.budget,
        reports,
        members=last.round.size,
        max_restarts=state.policy.max_restarts,
        workers=last.round.world_size,
        planned=switch is not None and not switch.broken,
        cut=cut or next((one.reason for one in reports if one.signature == CUT_OFF), ""),
    )


def is_cause_known(state: NodeState, last: LastRound) -> bool:
    """Whether the cause of the broken round is known, or only that members miss each other."""
    return names_cause(_reports(state, last))


def _reports(state: NodeState, last: LastRound) -> list[FaultReport]:
    """The members' reports on why they left the last round, and one for each lost member."""
    reports = []
    for member in last.round.members:
        fault = fault_of_member(state, member, last.round)
        if last.statuses[member.node] in LOST_STATUSES:
            kind = ASKED if _went_as_asked(state, member) else LOST
            lost = loss_message(state, member)
            reports.append(FaultReport(last.round.number, kind, lost, signature=kind))
        elif fault is not None:
            reports.append(fault)
    return reports


def fault_of_member(state: NodeState, member: Member, last: RoundRecord) -> FaultReport | None:
    """A member's report on why it left the last round."""
    record = record_of(state, member.node)
    fault = record.fault if record else None
    return fault if fault and fault.round == last.number else None
