"""The next round: when it may be sealed, and who is in it: pure.

Why a new round is safe: a group that lacks one of its members cannot finish a collective. So a
round may follow as soon as it contains one member of the last round that has left it, or all
members of the last round are proven gone. If neither holds, because all of them are silent, they
may be training still, and the next round waits until they must have stopped by themselves
(``fence``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER
from elastic_runtime.errors import EXIT_NOT_ENOUGH_NODES
from elastic_runtime.limits import FAILED_JOINER_PAUSES
from elastic_runtime.protocol.records import (
    DONE,
    IN,
    JOB,
    OUTCOME,
    ROUND,
    START,
    SWITCH,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    node_key,
)
from elastic_runtime.protocol.round_records import Budget, Member, RoundRecord
from elastic_runtime.rendezvous.core.formation.member_status import (
    LastRound,
    MemberStatus,
    eligible,
    record_of,
)
from elastic_runtime.rendezvous.core.formation.rank_order import ranked
from elastic_runtime.rendezvous.core.formation.reachability import (
    choose_connected,
    cut_message,
    severed_pairs,
)
from elastic_runtime.rendezvous.core.incarnation import dead_keys
from elastic_runtime.rendezvous.core.node_decision import Decision, wait, write
from elastic_runtime.rendezvous.core.node_state import OWN, Timer
from elastic_runtime.rendezvous.core.round_parts import keys, looked_for, split_round
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect, Put, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_runtime.rendezvous.core.formation.failure_budget import RoundCost
    from elastic_runtime.rendezvous.core.node_state import NodeState


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The nodes that are to form the next round, and why there are no more.

    Attributes:
        nodes: those of the last round by rank, then the others, the oldest first.
        cut: which of all that want to take part do not reach each other, for people; "": none.
    """

    nodes: list[NodeRecord]
    cut: str


def end_job(state: NodeState, outcome: OutcomeRecord, now: float) -> Decision:
    """Writes the end of the job into the store."""
    shown = state.shown
    expects = (
        Expect(OUTCOME, shown.outcome.version),
        Expect(ROUND, shown.round.version),
        Expect(JOB, shown.job.version),  # a node that lags behind must not end a later incarnation
    )
    end = Transaction(expects, (Put(OUTCOME, outcome.encode()),))
    return write(state, OUTCOME, end, now, outcome.reason)


def form_first(state: NodeState, job: JobRecord, now: float) -> Decision:
    """Seals the first round of the job's incarnation."""
    if state.shown.round.version != ABSENT:
        # A round of another incarnation: if that runs somewhere, it gets the time to show itself.
        state = state.start(Timer.OTHER_ROUND, now)
        due = state.timers[Timer.OTHER_ROUND] + state.policy.settle
        if now < due:
            return wait(state, "the store shows a round of another job", until=due)
    found = _in_reach(job, joiners(state, None, now), 0)
    size = largest_world(job, len(found.nodes))
    if size < job.min_nodes or not size:
        return _too_few(state, job, found, now)
    state = state.stop(Timer.TOO_FEW)
    if size < job.max_nodes:
        state = state.start(Timer.LAST_CALL, now)
        due = state.timers[Timer.LAST_CALL] + state.policy.timeouts.last_call
        if now < due:
            return wait(state, "last call for more nodes", len(found.nodes), until=due)
    members = ranked(None, found.nodes, size)
    return _seal(state, _next_round(state, job, None, members), None, "first round", now)


def form_next(state: NodeState, last: LastRound, cost: RoundCost, now: float) -> Decision:
    """Seals the next round if its members are there and it is safe."""
    state, job = _suspect_newcomers(state, last.round, cost, now), last.job
    found = _candidates(state, last, now)
    size = largest_world(job, len(found.nodes))
    if size < job.min_nodes or not size:
        return _too_few(state, job, found, now)
    state = state.stop(Timer.TOO_FEW)
    if not _is_safe(last):
        state = state.start(Timer.NO_SURVIVOR, now)
        due = state.timers[Timer.NO_SURVIVOR] + state.policy.timeouts.fence_timeout
        if now < due:
            text = "the members of the last round are silent (--fence-timeout)"
            return wait(state, text, until=due)
    switch = state.switch_record
    reason = switch.reason if switch else ""
    if cost.reason and (switch is None or switch.broken):
        reason = cost.reason
    members = ranked(last.round, found.nodes, size, partial(record_of, state))
    following = _next_round(state, job, last.round, members)
    following = replace(following, budget=cost.budget)
    return _seal(state, following, last.round, reason, now)


def _candidates(state: NodeState, last: LastRound, now: float) -> _Candidates:
    """Members that are back and nodes that join, as far as they reach each other."""
    back = [
        record
        for member in last.with_status(MemberStatus.BACK)
        if (record := record_of(state, member.node)) is not None
        and record.status == IN
        and record.workers
    ]
    trusted = [node for node in back if not _is_suspect(state, node, now)]
    fresh = joiners(state, last.round, now)
    if largest_world(last.job, len(trusted) + len(fresh)) >= last.job.min_nodes and trusted:
        back = trusted
    switch = state.switch_record
    if switch is not None and switch.survey:
        # A node that has not written yet which nodes it reaches may join once it has.
        back = [node for node in back if has_checked(node, last.round)]
        fresh = [node for node in fresh if has_checked(node, last.round)]
    return _in_reach(last.job, [*back, *fresh], len(back), sampled(last.round))


def largest_world(job: JobRecord, nodes: int) -> int:
    """The largest world that so many nodes can form."""
    size = min(nodes, job.max_nodes)
    return size - size % job.node_unit


def has_checked(node: NodeRecord | None, last: RoundRecord) -> bool:
    """Whether a node has probed the members of this round."""
    return node is not None and node.checked >= last.number


def _in_reach(
    job: JobRecord,
    nodes: list[NodeRecord],
    survivors: int,
    looked_for: Callable[[str], Iterable[str]] | None = None,
) -> _Candidates:
    """Those of the nodes that are to form a round."""
    pairs, least = severed_pairs(nodes), job.min_nodes
    chosen = choose_connected(
        nodes, survivors, lambda count: largest_world(job, count), least, looked_for
    )
    return _Candidates(chosen, cut_message(pairs) if pairs else "")


def sampled(last: RoundRecord) -> Callable[[str], Iterable[str]] | None:
    """Which nodes each node probes in a large round, by uuid; None: all."""
    if not last.group or len(last.members) < last.size:
        return None
    members = looked_for(last)
    return lambda node: (member.node for member in members(node))


def joiners(state: NodeState, last: RoundRecord | None, now: float) -> list[NodeRecord]:
    """Nodes that want to join and were not in the last round, the oldest first."""
    record, job = state.own.record, state.job_record
    nodes = [
        (peer.created, peer.record) for peer in state.shown.peers.values() if eligible(state, peer)
    ]
    if state.own.stored is not None and record is not None:
        nodes.append((state.own.created, record))
    settings = job.settings if job else ""
    return [
        node
        for _, node in sorted(nodes, key=lambda item: item[0])
        if node.status == IN
        and node.workers
        and (last is None or last.rank_of(node.node) < 0)
        and (not settings or node.settings == settings)
        and (last is None or not node.checked or has_checked(node, last))
        and not _is_suspect(state, node, now)
    ]


def _is_suspect(state: NodeState, node: NodeRecord, now: float) -> bool:
    return state.history.suspects.get(node.node, (0, 0.0))[1] > now


def next_trial(state: NodeState, now: float) -> float:
    """When the next suspect may be tried again; ``NEVER`` if there is none."""
    ends = [until for _, until in state.history.suspects.values() if until > now]
    return min(ends, default=NEVER)


def _too_few(state: NodeState, job: JobRecord, found: _Candidates, now: float) -> Decision:
    state = state.start(Timer.TOO_FEW, now).stop(Timer.LAST_CALL)
    due = state.timers[Timer.TOO_FEW] + state.policy.timeouts.join_timeout
    have, cut = len(found.nodes), f": {found.cut}" if found.cut else ""
    if now < due:
        unit = f", a multiple of {job.node_unit}" if job.node_unit > 1 else ""
        nodes = "one node" if job.min_nodes == 1 else f"{job.min_nodes} nodes"
        scaled = "" if job.min_nodes == job.launch_min else " (elasticctl scale)"
        text = f"waiting for at least {nodes}{unit}{scaled}{cut}"
        return wait(state, text, have, until=min(due, next_trial(state, now)))
    outcome = OutcomeRecord(
        job.incarnation,
        False,
        EXIT_NOT_ENOUGH_NODES,
        f"{have} of at least {job.min_nodes} nodes came together within "
        f"{state.policy.timeouts.join_timeout:g} s (--join-timeout){cut}",
    )
    return end_job(state, outcome, now).by(next_trial(state, now))


def _is_safe(last: LastRound) -> bool:
    """No islands: one member that has left the last round, or all of them proven gone."""
    statuses = last.statuses.values()
    gone = (MemberStatus.LEFT, MemberStatus.DEAD, MemberStatus.ENDED_WELL)
    return MemberStatus.BACK in statuses or all(status in gone for status in statuses)


def _suspect_newcomers(
    state: NodeState, last: RoundRecord, cost: RoundCost, now: float
) -> NodeState:
    """A round that only echoes ended, right after nodes joined: try without them for a while.

    Two nodes that both see the store but not each other would otherwise break the job for ever.
    """
    cause = cost.cause
    blameless = cause is None or not (cause.consequence or cause.kind == START)
    once = f"judged/{last.incarnation}/{last.number}"
    if once in state.given:
        return state
    suspects = dict(state.history.suspects)
    if last.survivors and cost.budget.fruitless and not blameless:
        for member in last.members[last.survivors :]:
            if member.node != state.me:
                strikes = suspects.get(member.node, (0, 0.0))[0] + 1
                pause = FAILED_JOINER_PAUSES.pause(strikes)
                suspects[member.node] = (strikes, now + pause)
    history = replace(state.history, suspects=suspects)
    return replace(state, history=history, given=state.given | {once})


def _next_round(
    state: NodeState, job: JobRecord, last: RoundRecord | None, chosen: Sequence[NodeRecord]
) -> RoundRecord:
    """The round that follows, of these nodes in this order."""
    survivors = [node for node in chosen if last is not None and last.rank_of(node.node) >= 0]
    return RoundRecord(
        number=max(job.first_round, last.number if last else 0) + 1,
        incarnation=job.incarnation,
        members=tuple(member_of(node) for node in chosen),
        store_port=chosen[0].store_port,
        reason="",
        budget=Budget(),
        sealed_by=state.me,
        survivors=len(survivors),
    )


def _seal(
    state: NodeState, following: RoundRecord, last: RoundRecord | None, reason: str, now: float
) -> Decision:
    """Writes the next round, for this reason, and deletes what belonged to the last one only."""
    if state.pending(OWN, now):
        # The seal compares the version of our own key, which is about to change.
        reason = "our own key is being written"
        return Decision(state, wake=state.in_flight[OWN].until, reason=reason)
    sealed = replace(following, reason=reason)
    head, parts = split_round(sealed, state.policy.layout)
    kept = frozenset(member.node for member in sealed.members)
    deletes = [*dead_keys(state, kept), *_late_keys(state, last, kept)]
    stale = [key for one in (last, state.history.draft) for key in keys(one)]
    deletes += sorted(set(stale) - set(keys(head)))
    if state.shown.switch.version != ABSENT:
        deletes.insert(0, SWITCH)
    fence = Expect(node_key(state.me), state.own.version)
    seal = Transaction(
        (Expect(ROUND, state.shown.round.version), fence),
        (Put(ROUND, head.encode()),),
        tuple(dict.fromkeys(deletes)),
    )
    history = replace(state.history, draft=head if parts else None, unseen=sealed)
    return write(replace(state, history=history), ROUND, seal, now, reason, first=parts)


def member_of(node: NodeRecord) -> Member:
    """A node as a member of the next round."""
    return Member(
        node.node,
        node.name,
        node.address,
        node.workers,
        node.probe_port,
        node.store_port,
        node.life,
    )


def _late_keys(state: NodeState, last: RoundRecord | None, kept: frozenset[str]) -> list[str]:
    """The keys, to be deleted, of members that neither came back nor were proven dead in time."""
    late = []
    for member in last.members if last else ():
        peer = state.shown.peers.get(member.node)
        if last is None or peer is None or member.node in kept:
            continue
        record = peer.record
        has_left = record.incarnation == last.incarnation and record.left >= last.number
        if record.status in (IN, DONE) and not has_left:
            late.append(node_key(member.node))
    return late
