"""The nodes of ``scale.py``: participants as they are, of which two can die, and what they cost."""

from __future__ import annotations

import queue
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elastic_runtime.config import Timeouts
from elastic_runtime.protocol.records import KILLED, PLANNED, FaultReport
from elastic_runtime.rendezvous.core.membership_events import REFUSED, SILENT, LeftRound
from elastic_runtime.rendezvous.core.notices import Notice, Sealed, Switch
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.probe import Prober
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    StoreEntry,
    StoreEvent,
    StoreSnapshot,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.rendezvous.store_contract import Listener, Store

TTL = 60.0  # seconds of a lease, so that a death is found by a probe, and not by the end of it
LIMIT = 300.0  # seconds that anything may take
HERE = "127.0.0.1"


@dataclass
class Traffic:
    """Bytes of keys and values."""

    written: int = 0
    received: int = 0


class Counted:
    """A store that counts what goes through it; the same protocol as the store itself."""

    def __init__(self, store: Store, traffic: Traffic) -> None:
        self._store, self._traffic = store, traffic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def start(self, own_key: str, listener: Listener) -> None:
        def counted(event: StoreEvent) -> None:
            if isinstance(event, StoreSnapshot | Changed):
                self._count(event.entries if isinstance(event, StoreSnapshot) else event.puts)
            listener(event)

        self._store.start(own_key, counted)

    def apply(self, transaction: Transaction) -> bool:
        self._traffic.written += sum(len(p.key) + len(p.value) for p in transaction.puts)
        self._traffic.written += sum(map(len, transaction.deletes))
        return self._store.apply(transaction)

    def read(self, prefix: str) -> tuple[StoreEntry, ...]:
        entries = self._store.read(prefix)
        self._count(entries)
        return entries

    def _count(self, entries: Sequence[StoreEntry]) -> None:
        self._traffic.received += sum(len(e.key) + len(e.value) for e in entries)


class Answering(Prober):
    """Answers probes as the network would, without one.

    Args:
        answered: gets the answers.
        dead: whether who had this port has died.
    """

    def __init__(self, answered: Callable[[str, str], None], dead: Callable[[int], bool]) -> None:
        self._answered, self._dead = answered, dead

    def probe(self, node: str, address: str, port: int, secret: str) -> None:
        self._answered(node, REFUSED if self._dead(port) else SILENT)

    def close(self) -> None: ...


class Stage(Protocol):
    """Plays nodes in turn, in one thread."""

    def is_dead(self, port: int) -> bool:
        """Whether who had this port has died."""

    def push(self, node: Node) -> None:
        """This node has something to do."""


class Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
    """Says when there is something in it."""

    def __init__(self, node: Node, stage: Stage) -> None:
        super().__init__()
        self._node, self._stage = node, stage

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._stage.push(self._node)


class Node(Participant):
    """A participant, and an agent that does at once what it is told to.

    Args:
        number: names it, and says in which order nodes die.
        store: where it meets the others.
        total: nodes of the job.
        sealed: called with the round's number and size when this node is in a new one.
        dies: it will die, and can be probed.
        stage: plays it; None: it has a thread.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        total: int,
        sealed: Callable[[Node, int, int], None],
        dies: bool,
        stage: Stage | None = None,
    ) -> None:
        policy = Policy(max_nodes=total, entry="bench", timeouts=Timeouts(last_call=LIMIT))
        self.listener = socket.create_server((HERE, 0)) if dies else None
        self.port = self.listener.getsockname()[1] if self.listener else 0
        identity = NodeIdentity(f"node-{number:05d}", HERE, 8, probe_port=self.port, life=1)
        inbox = Inbox(self, stage) if stage else None
        prober = Answering(self._probed, stage.is_dead) if stage else None
        super().__init__(store, policy, identity, self._hear, inbox=inbox, prober=prober)
        self.number, self.dead, self.cpu = number, False, 0.0
        self.round = 0
        self._sealed_here = sealed

    def turn(self, events: Any) -> float:
        begun = time.thread_time()
        wake = super().turn(events)
        self.cpu += time.thread_time() - begun
        return wake

    def _hear(self, notice: Notice) -> None:
        if isinstance(notice, Sealed):
            self.round = notice.round.number
            self._sealed_here(self, self.round, notice.round.size)
        elif isinstance(notice, Switch):
            fault = FaultReport(notice.round, PLANNED, notice.reason)
            self.say(LeftRound(notice.round, fault, 1))

    def die(self) -> None:
        """Nothing of it moves any more, and its port refuses."""
        self.dead = True
        if self.listener is not None:
            self.listener.close()

    def notices(self) -> None:
        """A worker of this node has lost a peer."""
        why = FaultReport(self.round, KILLED, "a peer is gone", step=self.round, consequence=True)
        self.say(LeftRound(self.round, why, 1))


@dataclass
class Round:
    """What one round has cost; ``seconds`` from the fault, or the start, to its last member.

    ``leader_cpu`` and ``member_cpu`` are those of their own threads; ``nodes_cpu`` is all that the
    processes of nodes have used, with what they share to speak to the store.
    """

    what: str
    nodes: int
    seconds: float
    written: int
    received: int
    leader_cpu: float
    member_cpu: float
    nodes_cpu: float = 0.0
    store_cpu: float = 0.0
