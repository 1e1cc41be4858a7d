"""How each event changes what a node knows: pure, and without any decision.

``store_reducer`` handles the events of the store, this file all others.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, assert_never, cast

from elastic_runtime.backoff import Backoff
from elastic_runtime.limits import STALE_REFUSAL
from elastic_runtime.protocol.records import DONE, GONE, IN, LEAVING, ROUND, NodeRecord, node_key
from elastic_runtime.rendezvous.core.membership_events import (
    OTHER,
    REFUSED,
    SILENT,
    Applied,
    Done,
    Event,
    Goodbye,
    Leaving,
    LeftRound,
    LookForMembers,
    NewNode,
    PartsGone,
    PartsSeen,
    Probed,
    RecoversInPlace,
    SampleKnown,
    Tick,
    TrainReturned,
    WorkersAvailable,
)
from elastic_runtime.rendezvous.core.node_state import (
    InFlight,
    NodeState,
    OwnNode,
    Reach,
    StoreProblem,
    Timer,
)
from elastic_runtime.rendezvous.core.notices import BadRecord, StoreState
from elastic_runtime.rendezvous.core.store_reducer import (
    merged,
    reduce_changed,
    reduce_snapshot,
    regained,
)
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Found,
    LeaseLost,
    Lost,
    Refused,
    StoreSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# Answers that prove a death, a refusal where it is believed; silence proves nothing.
_PROOFS: tuple[str, ...] = (REFUSED, OTHER)
# How long to wait for the effect of a write that was done, and of one that was refused (seconds).
# What was written will be seen. A write that is seen late is repeated, and repeated writes make a
# busy store later still: the pauses grow.
_PAUSES = {True: Backoff(first=5.0, longest=10.0), False: Backoff(first=0.05, longest=10.0)}
# A write that was not answered is no such load: it is tried as soon as it may work again.
_UNANSWERED_PAUSE = 0.2
# A store that has taken no write for so long is asked less often (seconds).
_LONG, _LONG_PAUSE = 5.0, 2.0


def reduce_all(state: NodeState, events: Iterable[Event], now: float) -> NodeState:
    """The state after several events; those of one kind that follow each other at once.

    Args:
        state: the state before.
        events: what has happened, in order.
        now: seconds on the node's own monotonic clock.
    """
    for kind, group in groupby(events, key=type):
        alike = list(group)
        if kind is Probed:
            state = _probed(state, cast("list[Probed]", alike), now)
            continue
        if kind is Changed:
            alike = list(merged(cast("list[Changed]", alike)))
        for event in alike:
            state = reduce(state, event, now)
    return state


def reduce(state: NodeState, event: Event, now: float) -> NodeState:
    """The state after an event. Each kind of event has its one row here.

    Args:
        state: the state before.
        event: what has happened.
        now: seconds on the node's own monotonic clock.
    """
    match event:
        case StoreSnapshot():
            return reduce_snapshot(state, event, now)
        case Changed():
            return reduce_changed(state, event, now)
        case Lost(why, acked_at):
            return _lost(state, why, acked_at, now)
        case Found():
            return regained(state, now).with_notice(StoreState(True))
        case LeaseLost(acked_at):
            return _lease_lost(state, acked_at, now)
        case Refused(why):
            return state.with_notice(StoreState(False, why, refused=True), once="refused")
        case Applied():
            return _applied(state, event, now)
        case Probed():
            return _probed(state, (event,), now)
        case PartsGone():
            return _parts_gone(state, event)
        case SampleKnown(group):
            return replace(state, shown=replace(state.shown, sampled=group))
        case PartsSeen():
            return replace(state, shown=replace(state.shown, parts=event))
        case NewNode(record):
            return _new_node(state, record, now)
        case LeftRound():
            return _left_round(state, event, now)
        case WorkersAvailable(workers, store_port):
            return _workers_available(state, workers, store_port)
        case TrainReturned(number):
            return _train_returned(state, number)
        case Done():
            return _done(state, event, now)
        case Leaving():
            return _with_status(state, LEAVING)
        case Goodbye():
            return _with_status(state, GONE)
        case LookForMembers(number):
            return replace(state, reach=replace(state.reach, wanted=number))
        case RecoversInPlace():
            policy, own = replace(state.policy, in_place=True), state.own
            return replace(state, policy=policy, own=replace(own, workers_ready=True))
        case Tick():
            return state
    assert_never(event)


# ---------------------------------------------------------------- the store, and what it answers


def _lost(state: NodeState, why: str, acked_at: float | None, now: float) -> NodeState:
    contact = state.contact
    if not contact.connected and contact.lost_at:
        return replace(state, contact=replace(contact, lost_why=why))
    contact = replace(contact, connected=False, lost_at=now, lost_why=why)
    return _acked(replace(state, contact=contact), acked_at, now).with_notice(
        StoreState(False, why)
    )


def _lease_lost(state: NodeState, acked_at: float | None, now: float) -> NodeState:
    # This process may have been stopped: for a while, absent keys of others prove nothing.
    contact, own = replace(state.contact, regained_at=now), replace(state.own, lease_lost=True)
    return _acked(replace(state, contact=contact, own=own), acked_at, now)


def _acked(state: NodeState, acked_at: float | None, now: float) -> NodeState:
    """Notes when others may last have had a sign of us."""
    contact = state.contact
    last = now if acked_at is None else max(contact.acked_at, acked_at)
    return replace(state, contact=replace(contact, acked_at=last))


def _applied(state: NodeState, event: Applied, now: float) -> NodeState:
    contact = state.contact
    if event.ok is None:
        before = contact.unwritten if now < contact.refused_at + STALE_REFUSAL else None
        problem = StoreProblem(before.since if before else now, event.why)
        contact = replace(contact, unwritten=problem, refused_at=now)
    else:
        contact = replace(contact, unwritten=None)
    state = replace(state, contact=contact)
    if event.tag == ROUND and event.ok is False:
        state = replace(state, history=replace(state.history, unseen=None))
    if event.tag not in state.in_flight:
        return state  # what it did, or what was in its way, was seen already
    pause, tries = _UNANSWERED_PAUSE, state.in_flight[event.tag].tries
    if event.ok is not None:
        tries += 1
        pause = _PAUSES[event.ok].pause(tries)
    if contact.unwritten is not None and now - contact.unwritten.since > _LONG:
        pause = _LONG_PAUSE
    request = InFlight(now + pause, tries)
    return replace(state, in_flight={**state.in_flight, event.tag: request})


def _parts_gone(state: NodeState, event: PartsGone) -> NodeState:
    """What is known of the round's members stays, and can no longer be read."""
    shown = state.shown
    if shown.round.version != event.version:
        return state
    for key, why in event.wrong.items():
        state = state.with_notice(BadRecord(key, why), once=f"bad/{key}")
    text = "its members are not in the store"
    state = state.with_notice(BadRecord(ROUND, text), once=f"bad/{ROUND}/{event.version}")
    return replace(state, shown=replace(shown, round=replace(shown.round, unreadable=True)))


# ---------------------------------------------------------------- probes


def _probed(state: NodeState, events: Iterable[Probed], now: float) -> NodeState:
    reach = state.reach
    answers, answered, dead = dict(reach.answers), dict(reach.answered), dict(reach.dead)
    for event in events:
        node, answer = event.node, event.answer
        if answer == REFUSED and not _believed(state, node):
            answer = SILENT
        answers[node], answered[node] = answer, reach.sent.get(node, now)
        if answer in _PROOFS:
            dead[node] = answer
    return replace(state, reach=replace(reach, answers=answers, answered=answered, dead=dead))


def _believed(state: NodeState, node: str) -> bool:
    """Whether a refusal proves that this node is dead.

    A firewall between two nodes refuses as well, and the key of a node that it hides stays in the
    store. A member of the last round may still believe it: any round that it forms contains a
    member that has left. Any other node would take a whole job that trains for dead, and begin
    another one beside it.
    """
    last, peer, record = state.round_record, state.shown.peers.get(node), state.own.record
    if last is not None and last.rank_of(state.me) >= 0:
        return True
    if peer is None:
        return state.shown.wide  # its key is gone as well
    # On this machine itself no firewall is in between.
    return record is not None and peer.record.address == record.address


# ---------------------------------------------------------------- from the agent


def _new_node(state: NodeState, record: NodeRecord, now: float) -> NodeState:
    """Keeps what is known of the store and of others, except for what only a member may believe.

    Which nodes it reached before it was left out is forgotten: it may have been cut off since.
    """
    dead = {node: how for node, how in state.reach.dead.items() if how != REFUSED}
    asked = (False, frozenset(node_key(node) for node in dead))
    return replace(
        state,
        own=OwnNode(record, workers_ready=state.own.workers_ready),
        shown=replace(state.shown, complete=False, wide=False, asked=asked, peers={}),
        reach=Reach(dead=dead),
        timers={Timer.WAITING: now},
        given=state.given & {"refused"},
    )


def _left_round(state: NodeState, event: LeftRound, now: float) -> NodeState:
    record = _of_incarnation(state)
    if record is None:
        return state
    record = replace(
        record,
        left=max(event.round, record.left),
        fault=event.fault,
        step=max(record.step, event.fault.step),
        store_port=event.store_port or record.store_port,
        status=IN if event.stays else record.status,
        workers=record.workers if event.workers is None else event.workers,
    )
    ran = state.own.round
    if ran is not None and ran.number >= record.left:
        record = replace(record, rank=ran.rank_of(record.node))
    state = replace(state, own=replace(state.own, record=record, round=None))
    return state.restart(Timer.WAITING, now)


def _train_returned(state: NodeState, number: int) -> NodeState:
    record = _of_incarnation(state)
    if record is None:
        return state
    return replace(state, own=replace(state.own, record=replace(record, returned=number)))


def _done(state: NodeState, event: Done, now: float) -> NodeState:
    record = _of_incarnation(state)
    if record is None:
        return state
    step = max(record.step, event.step)
    record = replace(record, status=DONE, done_round=event.round, step=step)
    return replace(state, own=replace(state.own, record=record)).restart(Timer.WAITING, now)


def _of_incarnation(state: NodeState) -> NodeRecord | None:
    """Our record, to be changed for a report on a round; None: this node has not joined.

    What it says about rounds of another incarnation is removed.
    """
    record, ran = state.own.record, state.own.round
    if record is None or ran is None or ran.incarnation == record.incarnation:
        return record
    return replace(
        record,
        incarnation=ran.incarnation,
        left=0,
        rank=-1,
        returned=0,
        done_round=0,
        fault=None,
    )


def _workers_available(state: NodeState, workers: int, store_port: int) -> NodeState:
    record = state.own.record
    if record is None:
        return state
    record = replace(record, workers=workers, store_port=store_port or record.store_port)
    return replace(state, own=replace(state.own, record=record, workers_ready=True))


def _with_status(state: NodeState, status: str) -> NodeState:
    record = state.own.record
    if record is None:
        return state
    return replace(state, own=replace(state.own, record=replace(record, status=status)))
