"""The next round: when it may be sealed, and who is in it: pure.

Why a new round is safe: a group that lacks one of its members cannot finish a collective. So a
round may follow as soon as it contains one member of the last round that has left it, or all
members of the last round are proven gone. If neither holds, because all of them are silent, they
may be training still, and the next round waits until they must have stopped by themselves
(``fence``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.backoff import Backoff
from elastic_runtime.errors import EXIT_NOT_ENOUGH_NODES
from elastic_runtime.protocol.records import (
    DONE,
    IN,
    JOB,
    OUTCOME,
    ROUND,
    START,
    SWITCH,
    Budget,
    JobRecord,
    Member,
    NodeRecord,
    OutcomeRecord,
    RoundRecord,
    node_key,
)
from elastic_runtime.rendezvous.core.formation.member_status import (
    BACK,
    DEAD,
    ENDED_WELL,
    LEFT,
    eligible,
    record_of,
)
from elastic_runtime.rendezvous.core.formation.reachability import severed_pairs, together, told
from elastic_runtime.rendezvous.core.incarnation import dead_keys
from elastic_runtime.rendezvous.core.node_state import OWN
from elastic_runtime.rendezvous.core.round_parts import apart, keys, looked_for
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect, Put, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from elastic_runtime.rendezvous.core.actions import Plan
    from elastic_runtime.rendezvous.core.formation.failure_budget import Verdict
    from elastic_runtime.rendezvous.core.node_state import State

# A joiner with whom a round failed stays out for this long, doubled with each strike (seconds).
_SUSPICION = Backoff(first=4.0, longest=60.0)


def end(state: State, outcome: OutcomeRecord, plan: Plan, now: float) -> State:
    """Writes down the end of the job."""
    plan.reason = outcome.reason
    expects = (
        Expect(OUTCOME, state.outcome.version),
        Expect(ROUND, state.round.version),
        Expect(JOB, state.job.version),  # a node that lags behind must not end a later life
    )
    put = Put(OUTCOME, outcome.encode())
    return plan.apply(state, OUTCOME, Transaction(expects, (put,)), now)


def form_first(state: State, job: JobRecord, plan: Plan, now: float) -> State:
    """Seals the first round of the job's life."""
    if state.round.version != ABSENT:
        # A round of another life: if that runs somewhere, it has the first word.
        state = state.marked("foreign", now)
        due = state.marks["foreign"] + state.policy.settle
        if now < due:
            plan.wake_at(due)
            return plan.wait(state, "the store shows a round of another job")
    chosen = joiners(state, None, now)
    chosen, cut = _in_reach(job, chosen, 0)
    size = fitting(job, len(chosen))
    if size < job.min_nodes or not size:
        return _too_few(state, job, len(chosen), plan, now, cut)
    state = state.unmarked("short")
    if size < job.max_nodes:
        state = state.marked("call", now)
        due = state.marks["call"] + state.policy.timeouts.last_call
        if now < due:
            plan.wake_at(due)
            return plan.wait(state, "last call for more nodes", len(chosen))
    return _seal(state, job, None, chosen[:size], Budget(), "first round", plan, now)


def form_next(
    state: State,
    job: JobRecord,
    last: RoundRecord,
    standings: Mapping[str, str],
    verdict: Verdict,
    plan: Plan,
    now: float,
) -> State:
    """Seals the next round if its members are there and it is safe."""
    state = _suspect_newcomers(state, last, verdict, now)
    back = [
        record
        for member in last.members
        if standings[member.node] == BACK
        and (record := record_of(state, member.node)) is not None
        and record.status == IN
        and record.workers
    ]
    trusted = [node for node in back if not _is_suspect(state, node, now)]
    fresh = joiners(state, last, now)
    if fitting(job, len(trusted) + len(fresh)) >= job.min_nodes and trusted:
        back = trusted
    switch = state.switch_record
    if switch is not None and switch.survey:
        # Who does not say whom it reaches may be let in when it has.
        back = [node for node in back if has_checked(node, last)]
        fresh = [node for node in fresh if has_checked(node, last)]
    chosen, cut = _in_reach(job, [*back, *fresh], len(back), sampled(last))
    size = fitting(job, len(chosen))
    if size < job.min_nodes or not size:
        return _too_few(state, job, len(chosen), plan, now, cut)
    state = state.unmarked("short")
    if not _is_safe(standings):
        state = state.marked("island", now)
        due = state.marks["island"] + state.policy.timeouts.fence_timeout
        if now < due:
            plan.wake_at(due)
            return plan.wait(state, "the members of the last round are silent (--fence-timeout)")
    reason = switch.reason if switch else ""
    if verdict.reason and (switch is None or switch.broken):
        reason = verdict.reason
    return _seal(state, job, last, chosen[:size], verdict.budget, reason, plan, now)


def fitting(job: JobRecord, nodes: int) -> int:
    """The largest world that so many nodes can form."""
    size = min(nodes, job.max_nodes)
    return size - size % job.node_unit


def has_checked(node: NodeRecord | None, last: RoundRecord) -> bool:
    """Whether a node has looked for the members of this round."""
    return node is not None and node.checked >= last.number


def _in_reach(
    job: JobRecord,
    nodes: list[NodeRecord],
    survivors: int,
    looked_for: Callable[[str], Iterable[str]] | None = None,
) -> tuple[list[NodeRecord], str]:
    """Those of the nodes that are to form a round, and who does not reach whom, for people."""
    pairs = severed_pairs(nodes)
    chosen = together(nodes, survivors, lambda n: fitting(job, n), job.min_nodes, looked_for)
    return chosen, told(pairs) if pairs else ""


def sampled(last: RoundRecord) -> Callable[[str], Iterable[str]] | None:
    """Whom each node looks for in a large round, by uuid; None: everybody."""
    if not last.group or len(last.members) < last.size:
        return None
    members = looked_for(last)
    return lambda node: (member.node for member in members(node))


def joiners(state: State, last: RoundRecord | None, now: float) -> list[NodeRecord]:
    """Nodes that want in and were not in the last round, the oldest first."""
    record, job = state.record, state.job_record
    nodes = [(peer.created, peer.record) for peer in state.peers.values() if eligible(state, peer)]
    if state.stored is not None and record is not None:
        nodes.append((state.created, record))
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


def _is_suspect(state: State, node: NodeRecord, now: float) -> bool:
    return state.suspects.get(node.node, (0, 0.0))[1] > now


def _too_few(
    state: State, job: JobRecord, have: int, plan: Plan, now: float, cut: str = ""
) -> State:
    state = state.marked("short", now).unmarked("call")
    due = state.marks["short"] + state.policy.timeouts.join_timeout
    for _, until in state.suspects.values():
        if until > now:
            plan.wake_at(until)
    if now < due:
        plan.wake_at(due)
        unit = f", a multiple of {job.node_unit}" if job.node_unit > 1 else ""
        nodes = "one node" if job.min_nodes == 1 else f"{job.min_nodes} nodes"
        scaled = "" if job.min_nodes == job.launch_min else " (elasticctl scale)"
        why = f"waiting for at least {nodes}{unit}{scaled}"
        return plan.wait(state, f"{why}: {cut}" if cut else why, have)
    outcome = OutcomeRecord(
        job.incarnation,
        False,
        EXIT_NOT_ENOUGH_NODES,
        f"{have} of at least {job.min_nodes} nodes came together within "
        f"{state.policy.timeouts.join_timeout:g} s (--join-timeout){f': {cut}' if cut else ''}",
    )
    return end(state, outcome, plan, now)


def _is_safe(standings: Mapping[str, str]) -> bool:
    """No islands: one member that has left the last round, or all of them proven gone."""
    hows = standings.values()
    return BACK in hows or all(how in (LEFT, DEAD, ENDED_WELL) for how in hows)


def _suspect_newcomers(state: State, last: RoundRecord, verdict: Verdict, now: float) -> State:
    """A round that only echoes ended, right after nodes joined: try without them for a while.

    Two nodes that both see the store but not each other would otherwise break the job for ever.
    """
    cause = verdict.cause
    blameless = cause is None or not (cause.consequence or cause.kind == START)
    mark = f"judged/{last.incarnation}/{last.number}"
    if mark in state.told:
        return state
    suspects = dict(state.suspects)
    if last.survivors and verdict.budget.fruitless and not blameless:
        for member in last.members[last.survivors :]:
            if member.node != state.me:
                strikes = suspects.get(member.node, (0, 0.0))[0] + 1
                pause = _SUSPICION.pause(strikes)
                suspects[member.node] = (strikes, now + pause)
    return replace(state, suspects=suspects, told=state.told | {mark})


def _seal(
    state: State,
    job: JobRecord,
    last: RoundRecord | None,
    chosen: list[NodeRecord],
    budget: Budget,
    reason: str,
    plan: Plan,
    now: float,
) -> State:
    if state.held(OWN, now):
        # The seal is fenced by the version of our own key, which is about to be another one.
        plan.wake_at(state.holds[OWN])
        plan.reason = "our own key is being written"
        return state
    survivors = [node for node in chosen if last is not None and last.rank_of(node.node) >= 0]
    sealed = RoundRecord(
        number=max(job.first_round, last.number if last else 0) + 1,
        incarnation=job.incarnation,
        members=tuple(member_of(node) for node in chosen),
        store_port=chosen[0].store_port,
        reason=reason,
        budget=budget,
        sealed_by=state.me,
        survivors=len(survivors),
    )
    head, parts = apart(sealed, state.policy.layout)
    kept = frozenset(node.node for node in chosen)
    deletes = [*dead_keys(state, kept), *_late_keys(state, last, kept)]
    stale = [key for one in (last, state.draft) for key in keys(one)]
    deletes += sorted(set(stale) - set(keys(head)))
    if state.switch.version != ABSENT:
        deletes.insert(0, SWITCH)
    fence = Expect(node_key(state.me), state.version)
    transaction = Transaction(
        (Expect(ROUND, state.round.version), fence),
        (Put(ROUND, head.encode()),),
        tuple(dict.fromkeys(deletes)),
    )
    plan.reason = reason
    state = replace(state, draft=head if parts else None, unseen=sealed)
    return plan.apply(state, ROUND, transaction, now, first=parts)


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


def _late_keys(state: State, last: RoundRecord | None, kept: frozenset[str]) -> list[str]:
    """The keys of members that neither returned nor died in time: they find their key gone."""
    late = []
    for member in last.members if last else ():
        peer = state.peers.get(member.node)
        if last is None or peer is None or member.node in kept:
            continue
        record = peer.record
        has_left = record.incarnation == last.incarnation and record.left >= last.number
        if record.status in (IN, DONE) and not has_left:
            late.append(node_key(member.node))
    return late
