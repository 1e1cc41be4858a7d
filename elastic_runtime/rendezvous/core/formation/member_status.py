"""Who leads, how each member of the last round stands to it, and what that costs: pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import (
    CUT_OFF,
    DONE,
    GONE,
    IN,
    LOST,
    FaultReport,
    Member,
    NodeRecord,
    RoundRecord,
    called,
    node_key,
)
from elastic_runtime.rendezvous.core.events import OTHER, REFUSED, REPLACED
from elastic_runtime.rendezvous.core.formation.failure_budget import Verdict, explained, judge
from elastic_runtime.rendezvous.core.formation.reachability import severed_pairs, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.rendezvous.core.node_state import Peer, State

RUNNING = "running"  # as far as we know
BACK = "back"  # its workers have ended, it wants to go on
ENDED_WELL = "done"
LEFT = "left"  # said goodbye
DEAD = "dead"  # proven
LEASE_ENDED = "absent"

OVER = (LEFT, DEAD, LEASE_ENDED)
_HOW = {
    REFUSED: "its port refuses",
    OTHER: "another process answers there",
    REPLACED: "another node has its name by now",
}


def eligible(state: State, peer: Peer) -> bool:
    """Whether this node may lead: it is not known to be dead, and has not said goodbye."""
    return peer.record.status != GONE and peer.record.node not in state.dead


def leader_of(state: State) -> Peer | None:
    """The oldest other node that may lead, if it is older than we are; None if we lead."""
    ours = state.created if state.stored is not None else float("inf")
    older = [peer for peer in state.peers.values() if peer.created <= ours]
    return min(filter(partial(eligible, state), older), key=lambda it: it.created, default=None)


def alone(state: State) -> bool:
    """Whether it is certain that no other node takes part in the job."""
    sees_all = state.connected and state.snapshot and state.wide and state.stored is not None
    return sees_all and not any(eligible(state, peer) for peer in state.peers.values())


def accompanied(state: State) -> bool:
    """Whether another node is known to take part in the job that was not asked to leave."""
    there = (peer for peer in state.peers.values() if eligible(state, peer))
    return state.connected and any(peer.record.status == IN for peer in there)


def record_of(state: State, node: str) -> NodeRecord | None:
    """What this node says of itself, as far as it is seen."""
    if state.record is not None and node == state.me:
        return state.record
    peer = state.peers.get(node)
    return peer.record if peer else None


def standings_of(state: State, last: RoundRecord, now: float) -> dict[str, str]:
    """How each member of the last round stands to it, by node."""
    return {member.node: standing(state, member, last, now) for member in last.members}


def standing(state: State, member: Member, last: RoundRecord, now: float) -> str:
    """How a member of the last round stands to it."""
    node = member.node
    if node in state.dead:
        return DEAD
    record = record_of(state, node)
    if record is not None:
        ours = record.incarnation == last.incarnation
        well = ours and record.done_round == last.number
        if ours and record.left >= last.number:
            return LEFT if record.status == GONE else BACK
        if record.status == GONE:
            return ENDED_WELL if well else LEFT
        return ENDED_WELL if well and record.status == DONE else RUNNING
    if state.done_seen.get(node) == last.number:
        return ENDED_WELL
    # If it lives, it is about to write its key again: after amnesia, or over what is not its own.
    since = max(state.regained_at, state.strange.get(node_key(node), float("-inf")))
    if now - since < state.policy.settle:
        return RUNNING
    return LEASE_ENDED


def loss(state: State, member: Member, how: str) -> str:
    """How a member was lost, for people."""
    if how == DEAD:
        return f"{called(member.name)} lost: {_HOW[state.dead[member.node]]}"
    return f"{called(member.name)} lost: its lease has ended"


def verdict_on(state: State, last: RoundRecord, standings: Mapping[str, str]) -> Verdict:
    """What the last round costs, now that it is over."""
    switch = state.switch_record
    reports = _reports(state, last, standings)
    here = [record for member in last.members if (record := record_of(state, member.node))]
    cut = told(severed_pairs(here)) if severed_pairs(here) else ""
    return judge(
        last.budget,
        reports,
        members=last.size,
        max_restarts=state.policy.max_restarts,
        workers=last.world_size,
        planned=switch is not None and not switch.broken,
        cut=cut or next((one.reason for one in reports if one.signature == CUT_OFF), ""),
    )


def is_explained(state: State, last: RoundRecord, standings: Mapping[str, str]) -> bool:
    """Whether it is known why the last round broke, or only that its members miss each other."""
    return explained(_reports(state, last, standings))


def _reports(state: State, last: RoundRecord, standings: Mapping[str, str]) -> list[FaultReport]:
    """Why the members left the last round, as they say, and who of them was lost."""
    reports = []
    for member in last.members:
        how = standings[member.node]
        fault = fault_of(state, member, last)
        if how in (DEAD, LEASE_ENDED):
            reports.append(FaultReport(last.number, LOST, loss(state, member, how), signature=LOST))
        elif fault is not None:
            reports.append(fault)
    return reports


def fault_of(state: State, member: Member, last: RoundRecord) -> FaultReport | None:
    """Why a member left the last round, as it says."""
    record = record_of(state, member.node)
    fault = record.fault if record else None
    return fault if fault and fault.round == last.number else None
