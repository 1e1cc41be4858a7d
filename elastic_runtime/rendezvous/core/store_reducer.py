"""How events of the store change what a node knows: pure, and without any decision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import DONE, ROUND, JobRecord, NodeRecord, Record, node_key
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.membership_events import REFUSED, REPLACED
from elastic_runtime.rendezvous.core.node_state import (
    COMMON,
    NOTHING_STORED,
    OWN,
    CommonRecord,
    NodeState,
    Peer,
    Timer,
)
from elastic_runtime.rendezvous.core.notices import BadRecord, StoreState
from elastic_runtime.rendezvous.store_contract import ABSENT, Changed, StoreEntry, StoreSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_R = TypeVar("_R", bound=Record)


def merged(changes: Iterable[Changed]) -> Iterator[Changed]:
    """The same changes in as few pieces as can be.

    Each value of a key is kept, in order: what was there for a moment may say that a node has ended
    well. A new piece begins only where a key comes back that was deleted, or goes that was written.
    """
    puts: list[StoreEntry] = []
    deletes: list[str] = []
    written: set[str] = set()
    gone: set[str] = set()
    for change in changes:
        keys = {entry.key for entry in change.puts}
        if not (gone.isdisjoint(keys) and written.isdisjoint(change.deletes)):
            yield Changed(tuple(puts), tuple(deletes))
            puts, deletes, written, gone = [], [], set(), set()
        puts += change.puts
        deletes += change.deletes
        written |= keys
        gone.update(change.deletes)
    yield Changed(tuple(puts), tuple(deletes))


def regained(state: NodeState, now: float) -> NodeState:
    """The store answers again."""
    contact = state.contact
    if (
        contact.ever
        and not contact.connected
        and now - contact.acked_at >= state.policy.timeouts.fence_timeout
    ):
        contact, state = replace(contact, behind=True), state.stop(Timer.RESUMING)
    return replace(state, contact=replace(contact, connected=True, ever=True, regained_at=now))


def reduce_snapshot(state: NodeState, event: StoreSnapshot, now: float) -> NodeState:
    """A snapshot replaces all that was known of the followed keys."""
    if event.forgot:
        contact = replace(state.contact, forgot_at=now, regained_at=now)
        own = replace(state.own, registered=False, stored=None, version=ABSENT)
        state = replace(state, contact=contact, own=own).with_notice(StoreState(True, forgot=True))
    entries = {entry.key for entry in event.entries}
    for key in COMMON:
        if key not in entries:
            state = _with_common(state, key, NOTHING_STORED)
    if not state.contact.connected:
        state = regained(state, now).with_notice(StoreState(True))
    shown = state.shown
    kept = {node: peer for node, peer in shown.peers.items() if node_key(node) in entries}
    unreadable = {key: since for key, since in shown.unreadable.items() if key in entries}
    shown = replace(shown, peers=kept, unreadable=unreadable, wide=event.wide, complete=True)
    state = replace(state, shown=shown, in_flight={})
    if state.own.record and node_key(state.me) not in entries:
        state = _without_own_key(state)
    state = _take(state, event.entries, now)
    if state.own.old_outcome is None:
        state = replace(state, own=replace(state.own, old_outcome=_former_outcome(state)))
    return _note_replaced_nodes(state)


def _former_outcome(state: NodeState) -> int:
    """The version of an outcome that is not for this node: that of an earlier start of the job.

    An outcome of nodes that were started together with this one is its own, however late it comes,
    and so is a good one of a run that is not to be run again.
    """
    job, outcome, own = state.job_record, state.outcome_record, state.policy.invocation
    mine = state.own.record.settings if state.own.record is not None else ""
    same = job is not None and job.settings == mine
    if outcome is not None and outcome.succeeded and state.policy.once and same:
        return ABSENT
    if job is None or outcome is None or not own or job.invocation != own:
        return state.shown.outcome.version
    return ABSENT if outcome.incarnation == job.incarnation else state.shown.outcome.version


def reduce_changed(state: NodeState, event: Changed, now: float) -> NodeState:
    """Some of the followed keys have changed."""
    put = {entry.key for entry in event.puts}
    own = node_key(state.me) if state.own.record else ""
    seen = {OWN if key == own else key for key in (*put, *event.deletes)}
    if not seen.isdisjoint(state.in_flight):
        left = {tag: request for tag, request in state.in_flight.items() if tag not in seen}
        state = replace(state, in_flight=left)
    state = _without_keys(state, [key for key in event.deletes if key not in put], own)
    before = state.shown.peers.keys()
    state = _take(state, event.puts, now)
    # A node that writes its key again is alive, though a firewall may have refused our probes.
    reach, peers = state.reach, state.shown.peers
    refused = [node for node, how in reach.dead.items() if how == REFUSED]
    returned = {node for node in refused if node in peers and node not in before}
    if returned:
        dead = {node: how for node, how in reach.dead.items() if node not in returned}
        state = replace(state, reach=replace(reach, dead=dead))
    if ROUND in put:
        return _note_replaced_nodes(state)
    changed = {key.removeprefix(records.NODES) for key in put}
    return _note_replaced_nodes(state, changed & peers.keys())


def _without_keys(state: NodeState, deleted: Iterable[str], own: str) -> NodeState:
    removed: set[str] = set()
    for key in deleted:
        if key in COMMON:
            state = _with_common(state, key, NOTHING_STORED)
        elif key == own:
            state = _without_own_key(state)
        elif key.startswith(records.NODES):
            removed.add(key)
    if not removed:
        return state
    shown = state.shown
    peers = {node: peer for node, peer in shown.peers.items() if node_key(node) not in removed}
    unreadable = {key: since for key, since in shown.unreadable.items() if key not in removed}
    return replace(state, shown=replace(shown, peers=peers, unreadable=unreadable))


def _without_own_key(state: NodeState) -> NodeState:
    return replace(state, own=replace(state.own, stored=None, version=ABSENT))


def _take(state: NodeState, entries: Iterable[StoreEntry], now: float) -> NodeState:
    """Takes in the records under these keys."""
    peers = dict(state.shown.peers)
    done: dict[str, int] = {}
    for entry in entries:
        cls = COMMON.get(entry.key)
        if cls is not None:
            record, state = _read(state, cls, entry)
            kept = record or getattr(state.shown, entry.key).record
            common = CommonRecord(kept, entry.version, now, unreadable=record is None)
            state = _with_common(state, entry.key, common)
        elif entry.key.startswith(records.NODES):
            node, state = _take_node(state, entry, now)
            if node is None:
                peers.pop(entry.key.removeprefix(records.NODES), None)
            elif state.own.record is None or node.node != state.me:
                known = peers.get(node.node)
                seen = known.seen if known else now
                peers[node.node] = Peer(node, entry.created, entry.version, seen)
                if node.status == DONE:
                    done[node.node] = node.done_round
    if peers != state.shown.peers:
        state = replace(state, shown=replace(state.shown, peers=peers))
    if done:
        ended_well = {**state.history.ended_well, **done}
        state = replace(state, history=replace(state.history, ended_well=ended_well))
    return state


def _take_node(
    state: NodeState, entry: StoreEntry, now: float
) -> tuple[NodeRecord | None, NodeState]:
    """The record of a node, None if it cannot be read; notes which, and takes in our own record."""
    node, state = _read_node(state, entry)
    own, shown = state.own, state.shown
    if node is None:
        # This is no node's record. The owner of the key writes it again.
        if own.record and entry.key == node_key(state.me):
            return None, replace(state, own=replace(own, stored=None, version=entry.version))
        unreadable = {entry.key: now, **shown.unreadable}
        return None, replace(state, shown=replace(shown, unreadable=unreadable))
    if entry.key in shown.unreadable:
        unreadable = {key: at for key, at in shown.unreadable.items() if key != entry.key}
        state = replace(state, shown=replace(shown, unreadable=unreadable))
    if own.record and node.node == state.me:
        own = replace(
            own,
            stored=node,
            version=entry.version,
            created=entry.created,
            registered=True,
            lease_lost=False,
        )
        state = replace(state, own=own)
    return node, state


def _with_common(state: NodeState, key: str, common: CommonRecord) -> NodeState:
    match key:
        case records.JOB:
            return _with_job(state, common)
        case records.ROUND:
            return _with_round(state, common)
        case records.SWITCH:
            return replace(state, shown=replace(state.shown, switch=common))
        case _:
            return replace(state, shown=replace(state.shown, outcome=common))


def _with_job(state: NodeState, common: CommonRecord) -> NodeState:
    job, history = common.record, state.history
    if not isinstance(job, JobRecord):
        return replace(state, shown=replace(state.shown, job=common))
    if state.secret and not job.secret:
        # An elasticctl of a version that knows none has written it: the leader rewrites it.
        job = replace(job, secret=state.secret)
        common = replace(common, record=job, unreadable=True)
    return replace(
        state,
        shown=replace(state.shown, job=common),
        history=replace(history, job=job, last_number=max(history.last_number, job.first_round)),
        contact=replace(state.contact, behind=False),
    ).stop(Timer.RESUMING)


def _with_round(state: NodeState, common: CommonRecord) -> NodeState:
    sealed, history, ran = common.record, state.history, state.own.round
    state = replace(state, shown=replace(state.shown, round=common))
    if not isinstance(sealed, RoundRecord):
        return state
    unseen, known = history.unseen, history.round
    if unseen and (unseen.incarnation != sealed.incarnation or unseen.number <= sealed.number):
        history = replace(history, unseen=None)
    # A store that was emptied may count from the beginning again. What it had before is over then,
    # and must not be written again if it is emptied once more.
    other = known is not None and known.incarnation != sealed.incarnation
    if sealed.number <= history.last_number and not other:
        if known is not None and sealed.whole and known.identity == sealed.identity:
            history = replace(history, round=sealed)
        if ran is not None and sealed.whole and ran.identity == sealed.identity:
            state = replace(state, own=replace(state.own, round=sealed))
        return replace(state, history=history)
    # What was being waited for belonged to the round before; how long we wait ourselves does not.
    state = state.stop(*(timer for timer in state.timers if timer is not Timer.WAITING))
    number = max(history.last_number, sealed.number)
    history = replace(history, round=sealed, last_number=number)
    return replace(state, history=history)


def _note_replaced_nodes(state: NodeState, changed: Iterable[str] | None = None) -> NodeState:
    """Notes as dead all nodes whose name a later agent process has taken.

    Args:
        state: the present state.
        changed: the nodes whose keys have changed; None: any may have.
    """
    if state.own.record is None or not state.own.record.life:
        return state  # our launcher does not number agent processes, so no other does
    if changed is not None:
        names = {state.shown.peers[node].record.name for node in changed}
        if not names:
            return state
    last = state.round_record
    there = [state.own.record, *(peer.record for peer in state.shown.peers.values())]
    if changed is not None:
        there = [record for record in there if record.name in names]
    newest_life: dict[str, int] = {}
    for record in there:
        newest_life[record.name] = max(record.life, newest_life.get(record.name, 0))
    known: list[NodeRecord | Member] = [*there, *(last.members if last else ())]
    over = {
        one.node: REPLACED
        for one in known
        if 0 < one.life < newest_life.get(one.name, 0)
        and one.node != state.me
        and one.node not in state.reach.dead
    }
    if not over:
        return state
    return replace(state, reach=replace(state.reach, dead={**state.reach.dead, **over}))


def _read_node(state: NodeState, entry: StoreEntry) -> tuple[NodeRecord | None, NodeState]:
    node, state = _read(state, NodeRecord, entry)
    if node is not None and node_key(node.node) != entry.key:
        once = f"bad/{entry.key}"
        return None, state.with_notice(BadRecord(entry.key, "it describes another node"), once=once)
    return node, state


def _read(state: NodeState, cls: type[_R], entry: StoreEntry) -> tuple[_R | None, NodeState]:
    try:
        return cls.decode(entry.key, entry.value), state
    except RecordError as error:
        once = f"bad/{entry.key}/{entry.version}"
        return None, state.with_notice(BadRecord(error.key, error.why), once=once)
