"""How each event changes what a node knows: pure, and without any decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar, cast

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import (
    DONE,
    GONE,
    ROUND,
    JobRecord,
    Member,
    NodeRecord,
    Record,
    RoundRecord,
    node_key,
)
from elastic_runtime.rendezvous.core.events import (
    OTHER,
    REFUSED,
    REPLACED,
    SILENT,
    Applied,
    Around,
    Done,
    Drain,
    Event,
    Goodbye,
    LeftRound,
    LookForMembers,
    NewNode,
    PartsGone,
    PartsSeen,
    Probed,
    RecoversInPlace,
    Tick,
    WorkersAvailable,
)
from elastic_runtime.rendezvous.core.node_state import (
    COMMON,
    EMPTY,
    OWN,
    STALE,
    Peer,
    Slot,
    State,
    Trouble,
)
from elastic_runtime.rendezvous.core.notices import BadRecord, StoreState
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Entry,
    Found,
    LeaseLost,
    Lost,
    Refused,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_R = TypeVar("_R", bound=Record)

# Answers that prove a death, a refusal where it is believed; silence proves nothing.
_PROOFS: tuple[str, ...] = (REFUSED, OTHER)
# How long a decision that was written, refused or not answered waits to be seen, in seconds. What
# was written is in the store, and will be seen; a store that is late with it has enough to do.
_PAUSES = {True: 5.0, False: 0.05, None: 0.2}
# ... and at most so long, if it was tried again and again.
_LONGEST_PAUSE = 10.0
# A store that has taken no write for so long is asked less often (seconds).
_LONG, _LONG_PAUSE = 5.0, 2.0


def absorb_all(state: State, events: Iterable[Event], now: float) -> State:
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
            alike = list(_merged(cast("list[Changed]", alike)))
        for event in alike:
            state = absorb(state, event, now)
    return state


def _merged(changes: Iterable[Changed]) -> Iterator[Changed]:
    """The same changes in as few pieces as can be.

    Each value of a key is kept, in order: what was there for a moment may say that a node has ended
    well. A new piece begins only where a key comes back that was deleted, or goes that was written.
    """
    puts: list[Entry] = []
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


def absorb(state: State, event: Event, now: float) -> State:
    """The state after an event.

    Args:
        state: the state before.
        event: what has happened.
        now: seconds on the node's own monotonic clock.
    """
    match event:
        case Snapshot():
            return _without_former_lives(_snapshot(state, event, now))
        case Changed(puts):
            state = _changed(state, event, now)
            if any(entry.key == ROUND for entry in puts):
                return _without_former_lives(state)
            changed = {entry.key.removeprefix(records.NODES) for entry in puts}
            return _without_former_lives(state, changed & state.peers.keys())
        case Lost(why, acked_at):
            if not state.connected and state.lost_at:
                return replace(state, lost_why=why)
            state = replace(state, connected=False, lost_at=now, lost_why=why)
            return _acked(state, acked_at, now).tell(StoreState(False, why))
        case Found():
            return _regained(state, now).tell(StoreState(True))
        case LeaseLost(acked_at):
            # We may have stood still ourselves: for a while, absent keys of others prove nothing.
            return _acked(replace(state, lease_lost=True, regained_at=now), acked_at, now)
        case Refused(why):
            return state.tell(StoreState(False, why, refused=True), once="refused")
        case Applied():
            return _applied(state, event, now)
        case Probed():
            return _probed(state, (event,), now)
        case PartsGone():
            return _parts_gone(state, event)
        case Around(group):
            return replace(state, around=group)
        case PartsSeen():
            return replace(state, parts=event)
        case NewNode(record):
            return _joined(state, record, now)
        case LeftRound() | WorkersAvailable() | Done() | Drain() | Goodbye():
            return _command(state, event, now)
        case LookForMembers(number):
            return replace(state, doubted=number)
        case RecoversInPlace():
            return replace(state, policy=replace(state.policy, in_place=True), prepared=True)
        case Tick():
            return state


def _acked(state: State, acked_at: float | None, now: float) -> State:
    """Notes when others may have heard of us last."""
    return replace(state, acked_at=now if acked_at is None else max(state.acked_at, acked_at))


def _regained(state: State, now: float) -> State:
    if (
        state.contacted
        and not state.connected
        and now - state.acked_at >= state.policy.timeouts.fence_timeout
    ):
        state = replace(state, behind=True).unmarked("resuming")
    return replace(state, connected=True, contacted=True, regained_at=now)


def _applied(state: State, event: Applied, now: float) -> State:
    if event.ok is None:
        before = state.unwritten if now < state.refused_at + STALE else None
        trouble = Trouble(before.since if before else now, event.why)
        state = replace(state, unwritten=trouble, refused_at=now)
    else:
        state = replace(state, unwritten=None)
    if event.tag == ROUND and event.ok is False:
        state = replace(state, unseen=None)
    if event.tag not in state.holds:
        return state  # what it did, or what was in its way, was seen already
    pause = _PAUSES[event.ok]
    if event.ok is not None:
        # What is seen late is written again, which makes a store that has much to tell later still.
        # What was not answered is no such load: it is tried as soon as it may work again.
        tries = state.tries.get(event.tag, 0)
        pause = min(_LONGEST_PAUSE, pause * 2 ** min(tries, 10))
        state = replace(state, tries={**state.tries, event.tag: tries + 1})
    if state.unwritten is not None and now - state.unwritten.since > _LONG:
        pause = _LONG_PAUSE
    return replace(state, holds={**state.holds, event.tag: now + pause})


def _probed(state: State, events: Iterable[Probed], now: float) -> State:
    answers, heard, dead = dict(state.answers), dict(state.heard), dict(state.dead)
    for event in events:
        node, answer = event.node, event.answer
        if answer == REFUSED and not _believed(state, node):
            answer = SILENT
        answers[node], heard[node] = answer, state.probed.get(node, now)
        if answer in _PROOFS:
            dead[node] = answer
    return replace(state, answers=answers, heard=heard, dead=dead)


def _believed(state: State, node: str) -> bool:
    """Whether a refusal proves that this node is dead.

    A firewall between two nodes refuses as well, and the key of a node that it hides stays in the
    store. A member of the last round may still believe it: what it forms then holds a member that
    has left. Anybody else would take a whole job that trains for dead, and begin another beside it.
    """
    last, peer = state.round_record, state.peers.get(node)
    if last is not None and last.rank_of(state.me) >= 0:
        return True
    if peer is None:
        return state.wide  # its key is gone as well
    # From this machine itself it is no firewall's word.
    return state.record is not None and peer.record.address == state.record.address


def _without_former_lives(state: State, changed: Iterable[str] | None = None) -> State:
    """Takes nodes for dead that a later life of the same name has followed.

    Args:
        state: the present state.
        changed: the nodes whose keys have changed; None: any may have. Others need no second look.
    """
    if state.record is None or not state.record.life:
        return state  # who launched us does not number lives, and so it is with the others
    if changed is not None:
        names = {state.peers[node].record.name for node in changed}
        if not names:
            return state
    last = state.round_record
    there = [state.record, *(peer.record for peer in state.peers.values())]
    if changed is not None:
        there = [record for record in there if record.name in names]
    lives: dict[str, int] = {}
    for record in there:
        lives[record.name] = max(record.life, lives.get(record.name, 0))
    known: list[NodeRecord | Member] = [*there, *(last.members if last else ())]
    over = {
        one.node: REPLACED
        for one in known
        if 0 < one.life < lives.get(one.name, 0)
        and one.node != state.me
        and one.node not in state.dead
    }
    return replace(state, dead={**state.dead, **over}) if over else state


# ---------------------------------------------------------------- the agent's commands


def _joined(state: State, record: NodeRecord, now: float) -> State:
    """A new life. What is known of the store and of others stays, but what only members believe.

    Whom it reached before it was left out says nothing: it may have been cut off since.
    """
    dead = {node: how for node, how in state.dead.items() if how != REFUSED}
    return replace(
        state,
        record=record,
        stored=None,
        version=ABSENT,
        created=0,
        registered=False,
        excluded=False,
        lease_lost=False,
        snapshot=False,
        wide=False,
        asked=(False, frozenset(node_key(node) for node in dead)),
        dead=dead,
        probed={},
        answers={},
        heard={},
        current=None,
        old_outcome=None,
        peers={},
        missed={},
        doubted=0,
        told=state.told & {"refused"},
        marks={"wait": now},
    )


def _command(
    state: State, event: LeftRound | WorkersAvailable | Done | Drain | Goodbye, now: float
) -> State:
    record = state.record
    if record is None:
        return state
    incarnation = state.current.incarnation if state.current else record.incarnation
    if incarnation != record.incarnation and isinstance(event, LeftRound | Done):
        # What it says of rounds is of another life of the job, whose numbers mean nothing here.
        record = replace(record, incarnation=incarnation, left=0, rank=-1, done_round=0, fault=None)
    match event:
        case LeftRound(number, fault, store_port, stays, workers):
            record = replace(
                record,
                left=max(number, record.left),
                fault=fault,
                incarnation=incarnation,
                step=max(record.step, fault.step),
                store_port=store_port or record.store_port,
                status=records.IN if stays else record.status,
                workers=record.workers if workers is None else workers,
            )
            if state.current is not None and state.current.number >= record.left:
                record = replace(record, rank=state.current.rank_of(record.node))
            state = replace(state, current=None, marks={**state.marks, "wait": now})
        case WorkersAvailable(workers, store_port):
            record = replace(record, workers=workers, store_port=store_port or record.store_port)
            state = replace(state, prepared=True)
        case Done(number, step):
            record = replace(
                record,
                status=DONE,
                done_round=number,
                incarnation=incarnation,
                step=max(record.step, step),
            )
            state = replace(state, marks={**state.marks, "wait": now})
        case Drain():
            record = replace(record, status=records.DRAINING)
        case Goodbye():
            record = replace(record, status=GONE)
    return replace(state, record=record)


# ---------------------------------------------------------------- what the store shows


def _snapshot(state: State, event: Snapshot, now: float) -> State:
    if event.forgot:
        state = replace(
            state, forgot_at=now, regained_at=now, registered=False, stored=None, version=ABSENT
        ).tell(StoreState(True, forgot=True))
    entries = {entry.key for entry in event.entries}
    for key in COMMON:
        if key not in entries:
            state = _with_slot(state, key, EMPTY)
    if not state.connected:
        state = _regained(state, now).tell(StoreState(True))
    kept = {node: peer for node, peer in state.peers.items() if node_key(node) in entries}
    strange = {key: since for key, since in state.strange.items() if key in entries}
    state = replace(
        state, peers=kept, strange=strange, wide=event.wide, snapshot=True, holds={}, tries={}
    )
    if state.record and node_key(state.me) not in entries:
        state = replace(state, stored=None, version=ABSENT)
    state = _take(state, event.entries, now)
    if state.old_outcome is None:
        state = replace(state, old_outcome=_former_outcome(state))
    return state


def _former_outcome(state: State) -> int:
    """The version of an outcome that says nothing to this node: that of an earlier start.

    What the nodes of its own start have come to is an end for it as well, however late it comes.
    """
    job, outcome, own = state.job_record, state.outcome_record, state.policy.invocation
    if job is None or outcome is None or not own or job.invocation != own:
        return state.outcome.version
    return ABSENT if outcome.incarnation == job.incarnation else state.outcome.version


def _changed(state: State, event: Changed, now: float) -> State:
    put = {entry.key for entry in event.puts}
    own = node_key(state.me) if state.record else ""
    seen = {OWN if key == own else key for key in (*put, *event.deletes)}
    if not seen.isdisjoint(state.holds.keys() | state.tries.keys()):
        holds = {tag: until for tag, until in state.holds.items() if tag not in seen}
        tries = {tag: count for tag, count in state.tries.items() if tag not in seen}
        state = replace(state, holds=holds, tries=tries)
    removed: set[str] = set()
    for key in event.deletes:
        if key in put:
            continue
        if key in COMMON:
            state = _with_slot(state, key, EMPTY)
        elif key == own:
            state = replace(state, stored=None, version=ABSENT)
        elif key.startswith(records.NODES):
            removed.add(key)
    if removed:
        peers = {n: peer for n, peer in state.peers.items() if node_key(n) not in removed}
        strange = {key: since for key, since in state.strange.items() if key not in removed}
        state = replace(state, peers=peers, strange=strange)
    before = state.peers.keys()
    state = _take(state, event.puts, now)
    # Who writes its key anew lives, though a firewall may have refused for it while it was cut off.
    anew = {
        node
        for node, how in state.dead.items()
        if how == REFUSED and node in state.peers and node not in before
    }
    if not anew:
        return state
    return replace(state, dead={n: how for n, how in state.dead.items() if n not in anew})


def _take(state: State, entries: Iterable[Entry], now: float) -> State:
    peers = dict(state.peers)
    done: dict[str, int] = {}
    for entry in entries:
        cls = COMMON.get(entry.key)
        if cls is not None:
            record, state = _read(state, cls, entry)
            kept = record or getattr(state, entry.key).record
            slot = Slot(kept, entry.version, now, unreadable=record is None)
            state = _with_slot(state, entry.key, slot)
        elif entry.key.startswith(records.NODES):
            node, state = _read_node(state, entry)
            if node is None:
                peers.pop(entry.key.removeprefix(records.NODES), None)
                state = _with_strange(state, entry, now)
                continue
            if entry.key in state.strange:
                strange = {key: at for key, at in state.strange.items() if key != entry.key}
                state = replace(state, strange=strange)
            if state.record and node.node == state.me:
                state = replace(
                    state,
                    stored=node,
                    version=entry.version,
                    created=entry.created,
                    registered=True,
                    lease_lost=False,
                )
                continue
            known = peers.get(node.node)
            seen = known.seen if known else now
            peers[node.node] = Peer(node, entry.created, entry.version, seen)
            if node.status == DONE:
                done[node.node] = node.done_round
    if peers != state.peers:
        state = replace(state, peers=peers)
    return replace(state, done_seen={**state.done_seen, **done}) if done else state


def _with_strange(state: State, entry: Entry, now: float) -> State:
    """Something that is no node's record lies under a node's key. Its owner writes it again."""
    if state.record and entry.key == node_key(state.me):
        return replace(state, stored=None, version=entry.version)
    return replace(state, strange={entry.key: now, **state.strange})


def _with_slot(state: State, key: str, slot: Slot) -> State:
    match key:
        case records.JOB:
            if not isinstance(slot.record, JobRecord):
                return replace(state, job=slot)
            job = slot.record
            if state.secret and not job.secret:
                # An elasticctl of a version that knows none has written it: the leader mends it.
                job = replace(job, secret=state.secret)
                slot = replace(slot, record=job, unreadable=True)
            last = max(state.last_number, job.first_round)
            state = replace(state, job=slot, known_job=job, last_number=last)
            return replace(state, behind=False).unmarked("resuming")
        case records.ROUND:
            return _with_round(state, slot)
        case records.SWITCH:
            return replace(state, switch=slot)
        case _:
            return replace(state, outcome=slot)


def _parts_gone(state: State, event: PartsGone) -> State:
    """What is known of the round's members stays, and cannot be read any more."""
    if state.round.version != event.version:
        return state
    for key, why in event.wrong.items():
        state = state.tell(BadRecord(key, why), once=f"bad/{key}")
    text = "its members are not in the store"
    state = state.tell(BadRecord(ROUND, text), once=f"bad/{ROUND}/{event.version}")
    return replace(state, round=replace(state.round, unreadable=True))


def _with_round(state: State, slot: Slot) -> State:
    sealed, known, current = slot.record, state.known_round, state.current
    if not isinstance(sealed, RoundRecord):
        return replace(state, round=slot)
    unseen = state.unseen
    if unseen and (unseen.incarnation != sealed.incarnation or unseen.number <= sealed.number):
        state = replace(state, unseen=None)
    # A store that was emptied may count from the beginning again. What it had before is over then,
    # and must not be given back if it is emptied once more.
    other = known is not None and known.incarnation != sealed.incarnation
    if sealed.number <= state.last_number and not other:
        if known is not None and sealed.whole and known.identity == sealed.identity:
            state = replace(state, known_round=sealed)
        if current is not None and sealed.whole and current.identity == sealed.identity:
            state = replace(state, current=sealed)
        return replace(state, round=slot)
    # What was being waited for belonged to the round before; how long we wait ourselves does not.
    marks = {name: moment for name, moment in state.marks.items() if name == "wait"}
    number = max(state.last_number, sealed.number)
    return replace(state, round=slot, known_round=sealed, last_number=number, marks=marks)


def _read_node(state: State, entry: Entry) -> tuple[NodeRecord | None, State]:
    node, state = _read(state, NodeRecord, entry)
    if node is not None and node_key(node.node) != entry.key:
        once = f"bad/{entry.key}"
        return None, state.tell(BadRecord(entry.key, "it describes another node"), once=once)
    return node, state


def _read(state: State, cls: type[_R], entry: Entry) -> tuple[_R | None, State]:
    try:
        return cls.decode(entry.key, entry.value), state
    except RecordError as error:
        once = f"bad/{entry.key}/{entry.version}"
        return None, state.tell(BadRecord(error.key, error.why), once=once)
