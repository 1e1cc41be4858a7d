"""One node's part in the rendezvous: does the I/O that ``membership`` decides on.

One thread takes events from the store, from probes and from the agent, updates the state, decides,
and performs. It blocks only on the store, whose calls have deadlines.
"""

from __future__ import annotations

import queue
import threading
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER, MonotonicClock
from elastic_runtime.errors import RecordError, StoreUnavailable
from elastic_runtime.protocol.peer_proof import new_secret
from elastic_runtime.protocol.records import EVENTS, GONE, NODES, NodeRecord, node_key
from elastic_runtime.rendezvous.core import membership
from elastic_runtime.rendezvous.core.actions import (
    Action,
    ApplyTransaction,
    Follow,
    ListParts,
    Look,
    Notify,
    Probe,
    ReadMembers,
)
from elastic_runtime.rendezvous.core.formation.member_status import accompanied, alone, leader_of
from elastic_runtime.rendezvous.core.membership_events import (
    Applied,
    Event,
    Join,
    NewNode,
    Probed,
    Tick,
)
from elastic_runtime.rendezvous.core.reducer import reduce_all
from elastic_runtime.rendezvous.probe import Prober
from elastic_runtime.rendezvous.round_completer import RoundCompleter, parts_seen
from elastic_runtime.rendezvous.store_contract import Put, Transaction
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.clock import Clock
    from elastic_runtime.protocol.records import EventRecord
    from elastic_runtime.rendezvous.core.membership_events import AgentEvent
    from elastic_runtime.rendezvous.core.node_state import NodeState
    from elastic_runtime.rendezvous.core.notices import Notice
    from elastic_runtime.rendezvous.policy import Policy
    from elastic_runtime.rendezvous.store_contract import Store, StoreEntry

_ASK_AGAIN = 0.05
# For how long events that are to be kept wait to be written, in seconds.
_KEPT_FOR = 0.1
# The same while the store is away, and how many of them.
_KEPT_FOR_LATER = 1.0
_KEPT_AT_MOST = 32
# Seconds at the end for what takes a moment if it works at all.
_MOMENT = 0.5


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What does not change when this agent joins again as a new node; see ``NodeRecord``."""

    name: str
    address: str
    workers: int
    probe_port: int = 0
    settings: str = ""
    life: int = 0
    topology: str = ""


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class _Write:
    put: Put


Inbox = queue.SimpleQueue[Event | _Stop | _Write]


class Participant:
    """Takes part in the rendezvous of one run.

    Args:
        store: a store that was not started yet; the participant starts and closes it.
        policy: the settings of the decisions.
        identity: who this node is.
        notify: called with each notice, from the participant's thread; must not block.
        clock: the time.
        inbox: where events go; if one is given, there is no thread, and its owner calls ``turn``.
        prober: sends probes.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        identity: NodeIdentity,
        notify: Callable[[Notice], None],
        clock: Clock | None = None,
        inbox: Inbox | None = None,
        prober: Prober | None = None,
    ) -> None:
        self._store = store
        self._identity = identity
        self._notify = notify
        self._clock = clock or MonotonicClock()
        self._driven = inbox is not None
        self._inbox: Inbox = queue.SimpleQueue() if inbox is None else inbox
        self._state = membership.begin(replace(policy, secret=new_secret()))
        self._started = False
        self._following = ""
        self._closed = False
        self._refused = ""  # why the store has not performed a transaction of this turn
        self._said_goodbye = threading.Event()
        self._never = threading.Event()
        self._kept: dict[str, Put] = {}  # events that are to be written, by key, the newest last
        self._write_at = NEVER
        self._node = uuid.uuid4().hex
        self._rounds = RoundCompleter(store.read, policy.layout.keepers)
        self._prober = prober or Prober(policy.timeouts.probe_timeout, self._probed)
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ commands (any thread)

    @property
    def node(self) -> str:
        """The present uuid of this node."""
        return self._node

    @property
    def state(self) -> NodeState:
        """The present knowledge, an immutable value."""
        return self._state

    @property
    def secret(self) -> str:
        """The job's secret; "" as long as it is not known. Only for proofs to other agents."""
        return self._state.secret

    @property
    def alone(self) -> bool:
        """Whether it is certain that no other node takes part in the job."""
        return alone(self._state)

    @property
    def accompanied(self) -> bool:
        """Whether the job is known to have another node that was not asked to leave."""
        return accompanied(self._state)

    @property
    def leads(self) -> bool:
        """Whether no older node is there, as far as is seen."""
        state = self._state
        return state.own.stored is not None and leader_of(state) is None

    @property
    def granted_ttl(self) -> float:
        """Seconds until a silent node's key vanishes, as granted by the store."""
        return self._store.granted_ttl

    def say(self, event: AgentEvent) -> None:
        """Passes an event of this node to the rendezvous; returns at once.

        With ``Join`` it begins to follow the store. ``wait_for_goodbye`` says
        whether a ``Goodbye`` has arrived.

        Args:
            event: what happens.
        """
        if isinstance(event, Join):
            self._inbox.put(NewNode(self._new_record(event)))
            self.watch()
        else:
            self._inbox.put(event)

    def _new_record(self, join: Join) -> NodeRecord:
        if self._started:
            self._node = uuid.uuid4().hex
        identity = self._identity
        return NodeRecord(
            node=self._node,
            name=identity.name,
            address=identity.address,
            workers=identity.workers if join.workers is None else join.workers,
            probe_port=identity.probe_port,
            store_port=join.store_port,
            settings=identity.settings,
            life=identity.life,
            torch=self._state.policy.torch,
            regroup=self._state.policy.regroup,
            full=identity.workers,
            topology=identity.topology,
        )

    def watch(self) -> None:
        """Begins to follow the store, unless it does so already; ``Join`` does so too."""
        if not self._started:
            self._started = True
            self._following = node_key(self._node)
            self._store.start(self._following, self._inbox.put)
            if not self._driven:
                self._thread = threads.spawn(self._run, name="participant")

    def wait_for_goodbye(self, timeout: float) -> bool:
        """Waits until the store knows that this node has said goodbye.

        Args:
            timeout: seconds to wait at most; a store that is known to be away is not waited for.

        Returns:
            Whether the store knows.
        """
        if self._thread is None or not self._thread.is_alive():
            return False
        return self._said_goodbye.wait(timeout if self._state.contact.connected else _MOMENT)

    def record_event(self, key: str, event: EventRecord) -> None:
        """Keeps an event in the store for ``elasticctl``; lost without harm if the store is away.

        Args:
            key: where, see ``records.event_key``; an earlier event there is overwritten.
            event: what happened.
        """
        self._inbox.put(_Write(Put(key, event.encode())))

    def beat(self) -> None:
        """Says that the agent's main loop runs; without it the lease is not kept."""
        self._store.beat()

    def wait_for_others_to_leave(self, timeout: float) -> None:
        """Waits until every other node has said goodbye or is gone, if the store is hosted here.

        It would end with this process, and the others still have to read the outcome. A store
        does not report when the last one has gone, so this asks until it is so.

        Args:
            timeout: seconds to wait at most; a node that died unseen must not keep us for ever.
        """
        deadline = self._clock.now() + timeout
        while self._store.hosted_here and self._clock.now() < deadline:
            try:
                entries = self._store.read(NODES)
            except StoreUnavailable:
                return
            if not any(self._is_there(entry) for entry in entries):
                return
            self._never.wait(_ASK_AGAIN)

    def _is_there(self, entry: StoreEntry) -> bool:
        try:
            record = NodeRecord.decode(entry.key, entry.value)
        except RecordError:
            return False
        return record.status != GONE and record.node not in (self._node, *self._state.reach.dead)

    def close(self) -> None:
        """Ends the part. The lease is released, with or without a goodbye before."""
        if self._closed:
            return
        self._closed = True
        self._inbox.put(_Stop())
        if self._thread is not None and threading.current_thread() is not self._thread:
            # It may be waiting for the answer to a write, which the end of the store ends as well.
            self._thread.join(_MOMENT)
        self._prober.close()
        self._store.close()

    # ------------------------------------------------------------ the loop

    def _run(self) -> None:
        wake = self._clock.now()
        while True:
            events = [event for event in self._wait(wake) if not isinstance(event, _Stop)]
            if self._closed:
                self._keep(events)
                self._write_kept()
                return
            wake = self.turn(events)

    def turn(self, events: Sequence[Event | _Write]) -> float:
        """Takes in what has happened, decides once, and performs it; on the participant's thread.

        Args:
            events: what has happened, in order.

        Returns:
            When to come back without any event, on the participant's clock.
        """
        now = self._clock.now()
        actions: list[Action] = []
        pending: list[Event] = []
        happened = [event for event in events if not isinstance(event, _Write)]
        before = self._state
        for event in self._rounds.take(happened, self._node, before.shown.wide, now):
            if isinstance(event, NewNode):
                self._state = reduce_all(self._state, pending, now)
                decision = membership.step(self._state, event, now)
                self._state, pending = decision.state, []
                actions.extend(decision.actions)
            else:
                pending.append(event)
        self._state = reduce_all(self._state, pending, now)
        decision = membership.decide(self._state, now)
        self._state = decision.state
        self._refused = ""
        for action in (*actions, *decision.actions):
            self._perform(action)
        self._check_goodbye()
        self._keep(events)
        return min(decision.wake, self._rounds.due, self._write_kept_at(now))

    def _write_kept_at(self, now: float) -> float:
        """Writes the events that are to be kept, a moment after the first of them.

        Most come with a fault. Then the store has something to do that the whole job waits for,
        and so has this thread.

        Args:
            now: on the participant's clock.

        Returns:
            When it is to be called again.
        """
        if self._kept and self._write_at == NEVER:
            self._write_at = now + _KEPT_FOR
        if now >= self._write_at:
            self._write_kept()
            self._write_at = now + _KEPT_FOR_LATER if self._kept else NEVER
        return self._write_at

    def _keep(self, events: Sequence[Event | _Stop | _Write]) -> None:
        """Holds the events that are to be kept: of those for one key, the newest."""
        for event in events:
            if isinstance(event, _Write):
                self._kept.pop(event.put.key, None)
                self._kept[event.put.key] = event.put

    def _write_kept(self) -> None:
        if self._state.contact.connected:
            writes, self._kept = tuple(self._kept.values()), {}
            if writes:
                self._apply((EVENTS,), Transaction(puts=writes))
        for key in [*self._kept][:-_KEPT_AT_MOST]:
            del self._kept[key]

    def _wait(self, wake: float) -> list[Event | _Stop | _Write]:
        timeout = max(0.0, wake - self._clock.now())
        try:
            events: list[Event | _Stop | _Write] = [self._inbox.get(timeout=timeout)]
        except queue.Empty:
            return [Tick()]
        while not self._inbox.empty():
            events.append(self._inbox.get_nowait())
        return events

    def _check_goodbye(self) -> None:
        if self._state.goodbye_done(self._clock.now()):
            self._said_goodbye.set()

    def _perform(self, action: Action) -> None:
        match action:
            case ApplyTransaction(tag, transaction, first, also):
                self._apply((tag, *also), transaction, first)
            case Look(wide, without):
                self._store.look(wide, without)
            case Follow(own_key):
                if own_key != self._following:
                    self._following = own_key
                    self._store.follow(own_key)
            case Probe(node, address, port):
                self._prober.probe(node, address, port, self._state.secret)
            case ReadMembers(near):
                self._rounds.ask(self._clock.now(), near)
            case ListParts(version):
                if (seen := parts_seen(self._store.read, version)) is not None:
                    self._inbox.put(seen)
            case Notify(notice):
                self._notify(notice)

    def _apply(
        self, tags: tuple[str, ...], transaction: Transaction, first: tuple[Transaction, ...] = ()
    ) -> None:
        # After one that failed, the others would only delay the events that have come.
        ok: bool | None = None
        if not self._refused:
            try:
                ok = all(self._store.apply(one) for one in (*first, transaction))
                if ok and first:
                    self._rounds.wrote((*first, transaction))
            except StoreUnavailable as error:
                self._refused = str(error)
        for tag in tags:
            self._inbox.put(Applied(tag, ok, self._refused if ok is None else ""))

    def _probed(self, node: str, answer: str) -> None:
        self._inbox.put(Probed(node, answer))
