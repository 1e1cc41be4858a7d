"""A simulated store: revisions, leases, watches, restarts, and the loss of all memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol import records
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Found,
    LeaseLost,
    Lost,
    Put,
    StoreEntry,
    StoreEvent,
    StoreSnapshot,
    Transaction,
)

if TYPE_CHECKING:
    from tests.model.clockwork import Clockwork

TTL = 1.0
# How long it takes at most until a client is connected again, once it can be.
RECONNECT = 0.4
# How long a loss may go unnoticed behind a connection that says nothing, and a write take to fail.
# Measured with etcd and a lease of 5 s: 8.6 s and 4 s.
UNNOTICED = 1.72 * TTL
ANSWER = 0.8 * TTL
COMMON = frozenset({records.JOB, records.ROUND, records.SWITCH, records.OUTCOME})

# How often a read fails though there is contact.
UNREAD = 0.05

Watcher = Callable[[list[StoreEntry], list[str]], None]


class Lease:
    """Keys vanish at ``deadline``; None while the holder keeps it alive."""

    __slots__ = ("deadline", "over")

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.over = False


class SimStore:
    """The server.

    Args:
        clock: the simulation.
        on_commit: called with every change, before anybody else learns of it.
    """

    def __init__(self, clock: Clockwork, on_commit: Watcher) -> None:
        self.clock = clock
        self.on_commit = on_commit
        self.data: dict[str, StoreEntry] = {}
        self.leases: dict[str, Lease] = {}
        self.version = 0
        self.epoch = 0
        self.up = True
        self.clients: list[Client] = []
        self._waiting: list[Callable[[], None]] = []

    def on_next_write(self, call: Callable[[], None]) -> None:
        """Calls once, as soon as anything is written."""
        self._waiting.append(call)

    # -- faults

    def stop(self) -> None:
        """The server goes away; everybody loses contact."""
        self.up = False
        for client in self.clients:
            client.contact_changed()

    def start(self, *, forget: bool) -> None:
        """The server comes back, with or without its memory. Leases get another full TTL."""
        if forget:
            self.data.clear()
            self.epoch += 1
            for lease in self.leases.values():
                lease.over = True
            self.leases.clear()
            self.on_commit([], [])
        for lease in dict.fromkeys(self.leases.values()):
            self.let_run_out(lease, self.clock.now + TTL)
        self.up = True
        for client in self.clients:
            client.contact_changed()

    # -- leases

    def let_run_out(self, lease: Lease, deadline: float) -> None:
        """From now on the lease ends at ``deadline``, unless it is kept again."""
        lease.deadline = deadline
        self.clock.after(deadline - self.clock.now, self._expire, lease, deadline)

    def _expire(self, lease: Lease, deadline: float) -> None:
        if self.up and lease.deadline == deadline:
            self.revoke(lease)

    def revoke(self, lease: Lease) -> None:
        """Ends a lease and removes what was put under it."""
        lease.over = True
        gone = [key for key, holder in self.leases.items() if holder is lease]
        if gone:
            self.commit((), gone, None)

    # -- reads and writes

    def oldest(self, without: frozenset[str]) -> StoreEntry | None:
        """The oldest node's entry."""
        nodes = [e for k, e in self.data.items() if k[:6] == "nodes/" and k not in without]
        return min(nodes, key=lambda entry: entry.created, default=None)

    def holds(self, transaction: Transaction) -> bool:
        """Whether all conditions hold."""
        for expect in transaction.expects:
            entry = self.data.get(expect.key)
            if (entry.version if entry else ABSENT) != expect.version:
                return False
        return True

    def commit(self, puts: tuple[Put, ...], deletes: list[str], lease: Lease | None) -> None:
        """Writes, and sends the change to those who follow it."""
        self.version += 1
        removed = [key for key in deletes if key in self.data]
        for key in removed:
            del self.data[key]
            self.leases.pop(key, None)
        written = []
        for put in puts:
            old = self.data.get(put.key)
            created = old.created if old else self.version
            entry = StoreEntry(put.key, put.value, created, self.version)
            self.data[put.key] = entry
            self.leases.pop(put.key, None)
            if put.leased and lease is not None:
                self.leases[put.key] = lease
            written.append(entry)
        if written or removed:
            self.on_commit(written, removed)
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()
            for client in self.clients:
                client.see(written, removed)


class Client:
    """One node's adapter: what ``rendezvous.store.Store`` promises, in simulated time.

    Args:
        store: the server.
        deliver: takes events; the node's inbox.
        running: whether the node's process runs (neither dead nor paused).
        beats: whether the agent's main loop turns.
    """

    def __init__(
        self,
        store: SimStore,
        deliver: Callable[[StoreEvent], None],
        running: Callable[[], bool],
        beats: Callable[[], bool] = lambda: True,
    ) -> None:
        self.store = store
        self.clock = store.clock
        self.deliver = deliver
        self.running = running
        self.beats = beats
        # Drawn apart, so that a seed means what it always meant.
        self.chance_of_reads = random.Random(len(store.clients))
        self.cut = False  # a partition between this node and the store
        self.connected = False
        self.told_lost = False
        self.closed = False
        self.epoch = store.epoch
        self.lease: Lease | None = None
        self.local_deadline = float("inf")
        self.acked_at: float | None = None  # None while it is kept
        self.wanted: tuple[str, bool, frozenset[str]] = ("", False, frozenset())
        self.view = self.wanted
        self.leader = ""
        self.stale = True  # a snapshot is owed
        self.served = False  # has had a snapshot
        self.queue: list[tuple[float, StoreEvent]] = []
        self.last = 0.0
        store.clients.append(self)

    # -- connection

    @property
    def reachable(self) -> bool:
        """Whether packets pass between this node and the store."""
        return self.store.up and not self.cut and not self.closed

    def start(self, own_key: str) -> None:
        """Connects and begins to follow."""
        self.wanted = (own_key, False, frozenset())
        self.contact_changed()

    def contact_changed(self) -> None:
        """The path to the store opened or closed."""
        if self.closed:
            return
        clock = self.clock
        if self.reachable:
            if not self.connected:
                clock.after(clock.within(0.001, RECONNECT), self._connect)
            return
        if self.connected:
            self.connected = False
            # A server that is gone refuses; one behind a cut is silent.
            most = UNNOTICED if self.cut else RECONNECT
            clock.after(clock.within(0.01, most), self._notice_loss)
        self.keep_lease()

    def _notice_loss(self) -> None:
        if not self.connected and not self.told_lost and not self.closed:
            self.told_lost = True
            self.deliver(Lost("no answer", self.acked_at))

    def _connect(self) -> None:
        if self.connected or not self.reachable:
            return
        self.connected = True
        if self.told_lost:
            self.told_lost = False
            self._push(Found())
        if self.epoch != self.store.epoch:
            forgot = self.served
            self.epoch = self.store.epoch
            self.lease = None
            self.queue.clear()
            self._serve(forgot=forgot)
        elif self.stale or self.clock.chance(0.3):
            self.queue[:] = [item for item in self.queue if isinstance(item[1], Found)]
            self._serve()
        for moment, _ in self.queue:
            self.clock.after(max(0.0, moment - self.clock.now), self._flush)
        self.keep_lease()

    # -- following

    def follow(self, own_key: str) -> None:
        """A new life: the old lease is given up."""
        if self.lease is not None:
            if self.reachable:
                self.store.revoke(self.lease)
            elif self.lease.deadline is None:
                self.store.let_run_out(self.lease, self.clock.now + TTL)
            self.lease = None
        self.wanted = (own_key, *self.wanted[1:])
        self._ask()

    def look(self, wide: bool, without: frozenset[str]) -> None:
        """Changes the width of the view."""
        self.wanted = (self.wanted[0], wide, without)
        self._ask()

    def _ask(self) -> None:
        self.stale = True
        self.clock.after(self.clock.hop(), self._answer)

    def _answer(self) -> None:
        if self.stale and self.connected and self.reachable:
            self._serve()

    def _serve(self, *, forgot: bool = False) -> None:
        self.stale = False
        self.served = True
        self.view = own, wide, without = self.wanted
        data = self.store.data
        if wide:
            entries = [e for k, e in data.items() if k[:6] == "nodes/" or k in COMMON]
        else:
            lead = self.store.oldest(without)
            self.leader = lead.key if lead else ""
            wanted = COMMON | {own, self.leader}
            entries = [entry for key, entry in data.items() if key in wanted]
        entries.sort(key=lambda entry: entry.created)
        self._push(StoreSnapshot(tuple(entries), wide, forgot))

    def see(self, written: list[StoreEntry], removed: list[str]) -> None:
        """The server changed; what this client follows is sent to it."""
        if self.closed or not self.served or self.epoch != self.store.epoch:
            return
        own, wide, without = self.view
        if not wide:
            wanted = COMMON | {own, self.leader}
            written = [entry for entry in written if entry.key in wanted]
            removed = [key for key in removed if key in wanted]
            if self.leader in removed:
                lead = self.store.oldest(without)
                self.leader = lead.key if lead else ""
                if lead is not None and lead not in written and lead.key != own:
                    written = [*written, lead]
        if written or removed:
            self._push(Changed(tuple(written), tuple(removed)))

    def _push(self, event: StoreEvent) -> None:
        moment = max(self.last, self.clock.now + self.clock.hop())
        self.last = moment
        self.queue.append((moment, event))
        self.clock.after(moment - self.clock.now, self._flush)

    def _flush(self) -> None:
        while self.queue and self.connected and self.queue[0][0] <= self.clock.now:
            self.deliver(self.queue.pop(0)[1])

    def read(self, prefix: str) -> list[StoreEntry]:
        """All entries under a prefix, at once; the store may be out of reach."""
        if not (self.connected and self.reachable) or self.chance_of_reads.random() < UNREAD:
            raise StoreUnavailable("no answer")
        return [entry for key, entry in self.store.data.items() if key.startswith(prefix)]

    # -- leases

    def keep_lease(self) -> None:
        """Keep-alives are sent while the process runs and the store can be reached."""
        lease = self.lease
        if lease is None:
            return
        if self.connected and self.reachable and self.running() and self.beats():
            if lease.over:
                self._lose()
            else:
                lease.deadline = None
                self.local_deadline = float("inf")
                self.acked_at = None
            return
        if lease.deadline is None or self.local_deadline == float("inf"):
            sent = self.clock.now - self.clock.within(0.0, TTL / 3)
            if lease.deadline is None and not lease.over:
                self.store.let_run_out(lease, sent + TTL + 0.001)
            self.acked_at = sent
            self.local_deadline = sent + TTL
            self.clock.after(self.local_deadline - self.clock.now, self.check_lease)

    def check_lease(self) -> None:
        """Says that the lease is lost once the node's own deadline has passed."""
        if self.lease and self.running() and self.clock.now >= self.local_deadline:
            self._lose()

    def _lose(self) -> None:
        self.lease = None
        self.local_deadline = float("inf")
        self.deliver(LeaseLost(self.acked_at))

    # -- writing

    def apply(self, transaction: Transaction, answer: Callable[[bool | None], None]) -> None:
        """Performs a transaction; ``answer`` is called with its result."""
        self.clock.after(self.clock.hop(), self._execute, transaction, answer)

    def _execute(self, transaction: Transaction, answer: Callable[[bool | None], None]) -> None:
        clock, store = self.clock, self.store
        if not self.running() and not self.closed:
            # The process stands still, and what it was about to send goes out when it goes on.
            clock.after(0.1, self._execute, transaction, answer)
            return
        leased = any(put.leased for put in transaction.puts)
        if leased and not self.beats() and (self.lease is None or self.lease.over):
            clock.after(0.0, answer, None)
            return
        if not (self.reachable and self.connected) or self.epoch != store.epoch:
            clock.after(clock.within(0.1, ANSWER), answer, None)
            return
        result: bool | None = store.holds(transaction)
        if result:
            store.commit(transaction.puts, list(transaction.deletes), self._lease_for(transaction))
        if clock.chance(0.01):
            result = None
        clock.after(0.0 if clock.chance(0.5) else clock.hop(), answer, result)

    def _lease_for(self, transaction: Transaction) -> Lease | None:
        if not any(put.leased for put in transaction.puts):
            return None
        if self.lease is None or self.lease.over:
            self.lease = Lease()
            self.local_deadline = float("inf")
            self.keep_lease()
        return self.lease

    # -- the end

    def close(self) -> None:
        """Gives the lease back."""
        if self.lease is not None and self.reachable:
            self.store.revoke(self.lease)
        self.vanish()

    def vanish(self) -> None:
        """The process is gone; its lease runs out."""
        lease, self.lease = self.lease, None
        if lease is not None and lease.deadline is None and not lease.over:
            self.store.let_run_out(lease, self.clock.now + self.clock.within(2 * TTL / 3, TTL))
        self.closed = True
        self.store.clients.remove(self)
