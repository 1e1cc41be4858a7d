"""The store in this process' memory: the plainest statement of the contract.

``MemoryServer`` is what etcd would be, with its misfortunes as methods; a ``MemoryStore`` is one
node's view of it. ``embedded`` puts it behind a socket; tests use it as it is. A write costs as
much as there are followers of its key, however many nodes there are, so that
``scripts/bench/scale.py`` measures the rendezvous and not this.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.clock import MonotonicClock
from elastic_runtime.defaults import LEASE_TTL
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol.records import EVENTS, GROUP, NODES
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Found,
    LeaseLost,
    Lost,
    MainLoopSilent,
    StoreEntry,
    StoreSnapshot,
)
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.clock import Clock
    from elastic_runtime.rendezvous.store_contract import Listener, StoreEvent, Transaction

_STOPPED = "the memory store was stopped"
# How often a thread checks for leases that have ended (seconds).
_PATROL = 0.1


@dataclass(eq=False)
class _Lease:
    ttl: float
    renewed: float


class MemoryServer:
    """What all stores of one run share.

    Args:
        clock: the time by which leases end.
        revision: where versions begin.
        patrolled: whether a thread looks for leases that have ended; if not, the owner of the
            server calls ``expire_due``.

    Attributes:
        size: bytes of all values.
    """

    def __init__(
        self, clock: Clock | None = None, revision: int = 0, *, patrolled: bool = True
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._patrolled = patrolled
        self.size = 0
        self._lock = threading.RLock()
        self._entries: dict[str, StoreEntry] = {}
        self._nodes: dict[str, None] = {}
        self._groups: dict[str, None] = {}
        self._common: dict[str, None] = {}
        self._leases: dict[str, _Lease] = {}
        self._stores: dict[MemoryStore, None] = {}
        # Of the keys of nodes: which stores follow all of them, and which this one.
        self._wide: dict[MemoryStore, None] = {}
        self._followers: dict[str, dict[MemoryStore, None]] = {}
        self._due = float("inf")  # no lease ends before
        self._patrol: threading.Thread | None = None
        self._idle = threading.Event()
        self._revision = revision
        self._up = True
        self._why = _STOPPED

    # ------------------------------------------------------------ misfortunes

    def stop(self, why: str = _STOPPED) -> None:
        """No longer answers; what it knows stays."""
        with self._lock:
            if self._up:
                self._up, self._why = False, why
                for store in self._stores:
                    store._tell(Lost(why))

    def resume(self) -> None:
        """Answers again; leases had no time to end meanwhile."""
        with self._lock:
            if not self._up:
                self._up = True
                self.renew_all()
                for store in self._stores:
                    store._tell(Found())
                    store._show()

    def renew_all(self) -> None:
        """Gives every lease its whole time again: their holders could not be heard."""
        with self._lock:
            for lease in self._leases.values():
                lease.renewed = self._clock.now()

    def forget(self) -> None:
        """Loses its data, as a server does that starts again on an empty disk."""
        with self._lock:
            for kept in (self._entries, self._nodes, self._groups, self._common, self._leases):
                kept.clear()
            self.size = 0
            for store in self._stores:
                store._lease = None
                store._show(forgot=True)

    def expire(self, key: str) -> None:
        """Ends the lease that this key hangs on, as if its holder had been silent for its TTL."""
        with self._lock:
            if key in self._leases:
                self._end_lease(self._leases[key])

    def expire_due(self) -> None:
        """Ends all leases whose time has come."""
        with self._lock:
            now = self._clock.now()
            if not self._up or now < self._due:
                return
            for lease in {id(lease): lease for lease in self._leases.values()}.values():
                if now - lease.renewed > lease.ttl:
                    self._end_lease(lease)
            ends = (lease.renewed + lease.ttl for lease in self._leases.values())
            self._due = min(ends, default=float("inf"))

    # ------------------------------------------------------------ what stores ask of it

    def _apply(self, transaction: Transaction, store: MemoryStore) -> bool:
        with self._lock:
            self._answer()
            for expect in transaction.expects:
                found = self._entries.get(expect.key)
                if (found.version if found else ABSENT) != expect.version:
                    return False
            puts: list[StoreEntry] = []
            lease = store._take_lease() if any(put.leased for put in transaction.puts) else None
            for put in transaction.puts:
                self._revision += 1
                old = self._entries.get(put.key)
                created = old.created if old else self._revision
                self.size += len(put.value) - (len(old.value) if old else 0)
                puts.append(StoreEntry(put.key, put.value, created, self._revision))
                self._entries[put.key] = puts[-1]
                if put.key.startswith(NODES):
                    self._nodes[put.key] = None
                elif put.key.startswith(GROUP):
                    self._groups[put.key] = None
                elif not put.key.startswith(EVENTS):
                    self._common[put.key] = None
                self._leases.pop(put.key, None)
                if put.leased and lease is not None:
                    self._leases[put.key] = lease
                    self._due = min(self._due, lease.renewed + lease.ttl)
            self._spread(puts, self._remove(transaction.deletes))
            return True

    def _read(self, prefix: str) -> tuple[StoreEntry, ...]:
        with self._lock:
            self._answer()
            among = self._groups if prefix.startswith(GROUP) else self._entries
            found = [self._entries[key] for key in among if key.startswith(prefix)]
            return tuple(sorted(found, key=lambda entry: entry.created))

    def _answer(self) -> None:
        if not self._up:
            raise StoreUnavailable(self._why)
        self.expire_due()

    def _remove(self, keys: Iterable[str]) -> list[str]:
        gone = []
        for key in keys:
            if entry := self._entries.pop(key, None):
                self.size -= len(entry.value)
                gone.append(key)
        for key in gone:
            for kept in (self._leases, self._nodes, self._groups, self._common):
                kept.pop(key, None)
        return gone

    def _end_lease(self, lease: _Lease) -> None:
        gone = self._remove([key for key, one in self._leases.items() if one is lease])
        for store in self._stores:
            if store._lease is lease:
                store._lease = None
                store._tell(LeaseLost())
        self._spread([], gone)

    def _spread(self, puts: list[StoreEntry], deletes: list[str]) -> None:
        followers: dict[MemoryStore, None] = {}
        for key in (*(entry.key for entry in puts), *deletes):
            if key.startswith(NODES):
                followers |= self._wide | self._followers.get(key, {})
            elif not key.startswith((EVENTS, GROUP)):
                followers = self._stores
                break
        for store in tuple(followers):
            seen = tuple(entry for entry in puts if store._follows(entry.key))
            gone = tuple(key for key in deletes if store._follows(key))
            if store._overtaken(seen, gone):
                store._show()
            elif seen or gone:
                store._tell(Changed(seen, gone))

    # ------------------------------------------------------------ who follows what

    def _add(self, store: MemoryStore) -> None:
        self._stores[store] = None
        if self._patrolled and self._patrol is None:
            self._idle.clear()
            self._patrol = threads.spawn(self._watch_leases, name="memory-store")

    def _drop(self, store: MemoryStore) -> None:
        self._stores.pop(store, None)
        self._unfollow(store)
        if not self._stores:
            self._idle.set()
            self._patrol = None

    def _unfollow(self, store: MemoryStore) -> None:
        self._wide.pop(store, None)
        for key in (store._own, store._leader):
            followers = self._followers.get(key, {})
            followers.pop(store, None)
            if not followers:
                self._followers.pop(key, None)

    def _follow(self, store: MemoryStore) -> None:
        if store._wide:
            self._wide[store] = None
        for key in (store._own, store._leader):
            self._followers.setdefault(key, {})[store] = None

    def _oldest(self, without: frozenset[str]) -> str:
        # A dict keeps the order in which keys were created.
        nodes = (key for key in self._nodes if key not in without)
        return next(nodes, "")

    def _watch_leases(self) -> None:
        while not self._idle.wait(_PATROL):
            self.expire_due()


class MemoryStore:
    """One node's view of a ``MemoryServer``; see ``store_contract.Store``.

    Args:
        server: the shared state.
        lease_ttl: seconds; granted as asked.
    """

    def __init__(self, server: MemoryServer, lease_ttl: float = LEASE_TTL) -> None:
        self._server = server
        self._ttl = lease_ttl
        self._lease: _Lease | None = None
        self._beaten = server._clock.now()
        self._own = ""
        self._leader = ""
        self._wide = False
        self._listener: Listener | None = None
        self._forgot = False
        self._without: frozenset[str] = frozenset()

    @property
    def granted_ttl(self) -> float:
        """Seconds; 0 before there is a lease."""
        return self._ttl if self._lease else 0.0

    @property
    def hosted_here(self) -> bool:
        """Never: the server outlives its stores."""
        return False

    @property
    def leased(self) -> bool:
        """Whether there is a lease."""
        return self._lease is not None

    def start(self, own_key: str, listener: Listener) -> None:
        """Begins to deliver events, or begins again, with a ``StoreSnapshot``."""
        self.beat()
        with self._server._lock:
            self._server._unfollow(self)
            self._own, self._listener = own_key, listener
            self._server._add(self)
            if self._server._up:
                self._show()
            else:
                self._tell(Lost(self._server._why))

    def follow(self, own_key: str) -> None:
        """Changes the own key; ends the old lease."""
        with self._server._lock:
            self._server._unfollow(self)
            self._own = own_key
            self._give_back()
            self._show()

    def look(self, wide: bool, without: frozenset[str]) -> None:
        """Changes what is followed."""
        with self._server._lock:
            self._wide, self._without = wide, without
            self._show()

    def apply(self, transaction: Transaction) -> bool:
        """Performs a transaction."""
        return self._server._apply(transaction, self)

    def beat(self) -> None:
        """Renews the lease."""
        with self._server._lock:
            self._beaten = self._server._clock.now()
            if self._lease and self._server._up:
                self._lease.renewed = self._beaten

    def read(self, prefix: str) -> tuple[StoreEntry, ...]:
        """All entries under a prefix."""
        return self._server._read(prefix)

    def mute(self) -> None:
        """Delivers nothing until it is started again; the lease lasts as long as it would."""
        with self._server._lock:
            self._listener = None

    def close(self) -> None:
        """Gives the lease back and stops."""
        with self._server._lock:
            self._server._drop(self)
            self._listener = None
            self._give_back()

    # ------------------------------------------------------------ under the server's lock

    def _take_lease(self) -> _Lease:
        if self._lease is None:
            silent = self._server._clock.now() - self._beaten
            if silent > self._ttl:
                raise MainLoopSilent(silent)
            self._lease = _Lease(self._ttl, self._server._clock.now())
        return self._lease

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease and self._server._up:
            self._server._end_lease(lease)

    def _follows(self, key: str) -> bool:
        if key.startswith(NODES):
            return self._wide or key in (self._own, self._leader)
        return not key.startswith((EVENTS, GROUP))

    def _overtaken(self, seen: tuple[StoreEntry, ...], gone: tuple[str, ...]) -> bool:
        """Whether another node is to be followed: else each would look wide to find the oldest."""
        if self._wide:
            return False
        if self._leader:
            return self._leader in gone
        return any(entry.key == self._own for entry in seen)

    def _show(self, forgot: bool = False) -> None:
        self._forgot = self._forgot or forgot
        if not self._server._up:  # resume() will show it
            return
        server = self._server
        server._unfollow(self)
        self._leader = server._oldest(self._without)
        server._follow(self)
        nodes = server._nodes if self._wide else {self._own, self._leader} & server._nodes.keys()
        followed = [server._entries[key] for key in (*server._common, *nodes)]
        followed.sort(key=lambda entry: entry.created)
        self._tell(StoreSnapshot(tuple(followed), self._wide, self._forgot))
        self._forgot = False

    def _tell(self, event: StoreEvent) -> None:
        if self._listener is not None:
            self._listener(event)
