"""A node's lease in etcd, from its grant to its end: keys put under it vanish when it ends.

``NodeLease`` asks for a lease when one is needed, and for another one when that was lost.
``LeaseKeeper``, one thread in a process, sends the keep-alives of all of them, but only while the
main loop of a lease's owner runs: ``beat`` says that it does, and after one TTL without it no
keep-alive is sent from then on.

What we know of a lease is the server's last answer, counted from when the request was *sent*: the
server may have counted from later, never from earlier. A server that restarts, or elects a leader,
extends all leases; so ours may last longer than our own deadline, but we must not count on it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from elastic_runtime.clock import MonotonicClock
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import MainLoopSilent
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.clock import Clock
    from elastic_runtime.rendezvous.stores.etcd.etcd_client import EtcdClient

# Keep-alives go out this often within a TTL, and after one without an answer this soon again (s).
_PER_TTL = 3
_AGAIN = 0.25


class KeepAlive(Protocol):
    """Sends one keep-alive without blocking.

    ``done`` gets the TTL in the server's answer, in seconds (not above 0: it knows no such
    lease), or the reason why there is none. It runs on a thread of the client's.
    """

    def __call__(self, lease: int, done: Callable[[int | StoreUnavailable], None]) -> None: ...


class EtcdLease:
    """A lease that was granted to us.

    Args:
        number: its id.
        ttl: seconds, as granted.
        granted_at: when the request for it was sent, on the keeper's clock.
        send: sends a keep-alive.
        lost: called once, from any thread, when it has ended or may have.

    Attributes:
        number, ttl: as given.
        acked_at: when the last request was sent that has an answer.
        deadline: when it ends, by the last answer.
        due: when the next keep-alive is to be sent.
        beaten: when the owner's main loop last said that it runs.
    """

    def __init__(
        self,
        number: int,
        ttl: float,
        granted_at: float,
        send: KeepAlive,
        lost: Callable[[EtcdLease], None],
    ) -> None:
        self.number = number
        self.ttl = ttl
        self.send = send
        self.lost = lost
        self.acked_at = granted_at
        self.deadline = granted_at + ttl
        self.due = granted_at + ttl / _PER_TTL
        self.beaten = granted_at


class LeaseKeeper:
    """Keeps all leases of a process alive; its thread sleeps until the next keep-alive is due.

    Args:
        clock: the time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._wake = threading.Condition()
        self._leases: set[EtcdLease] = set()
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """The keeper's time, in seconds."""
        return self._clock.now()

    def keep(self, lease: EtcdLease) -> None:
        """Keeps a lease alive from now on."""
        with self._wake:
            self._leases.add(lease)
            if self._thread is None:
                self._thread = threads.spawn(self._run, name="lease-keeper")
            self._wake.notify()

    def beat(self, lease: EtcdLease) -> None:
        """The owner's main loop runs."""
        lease.beaten = self._clock.now()

    def forget(self, lease: EtcdLease) -> None:
        """Sends no more keep-alives for a lease; its ``lost`` is not called from then on."""
        with self._wake:
            self._leases.discard(lease)

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._leases:
                    self._thread = None
                    return
                now = self._clock.now()
                over = [lease for lease in self._leases if now >= lease.deadline]
                self._leases.difference_update(over)
                due = [lease for lease in self._leases if now >= lease.due]
                for lease in due:
                    lease.due = now + lease.ttl / _PER_TTL
            for lease in over:
                lease.lost(lease)
            for lease in due:
                if now - lease.beaten < lease.ttl:
                    self._send(lease, now)
            with self._wake:
                moments = [min(lease.due, lease.deadline) for lease in self._leases]
                if moments:
                    self._wake.wait(max(0.0, min(moments) - self._clock.now()))

    def _send(self, lease: EtcdLease, now: float) -> None:
        def done(answer: int | StoreUnavailable) -> None:
            if not isinstance(answer, int):
                with self._wake:
                    lease.due = min(lease.due, self._clock.now() + _AGAIN)
                    self._wake.notify()
            elif answer > 0:
                with self._wake:
                    lease.acked_at = max(lease.acked_at, now)
                    lease.deadline = max(lease.deadline, now + answer)
            else:
                self._end(lease)

        lease.send(lease.number, done)

    def _end(self, lease: EtcdLease) -> None:
        with self._wake:
            known = lease in self._leases
            self._leases.discard(lease)
        if known:
            lease.lost(lease)


LEASE_KEEPER = LeaseKeeper()


class NodeLease:
    """The lease of one node: granted when it is first needed, and again when it was lost.

    Thread-safe.

    Args:
        client: of etcd.
        ttl: seconds to ask for.
        lost: called, from any thread, each time that a lease has ended or may have.

    Attributes:
        granted_ttl: seconds, as last granted; 0 before the first lease.
    """

    def __init__(self, client: EtcdClient, ttl: int, lost: Callable[[], None]) -> None:
        self.granted_ttl = 0.0
        self._client = client
        self._ttl = max(1, ttl)
        self._lost = lost
        self._lock = threading.Lock()
        self._lease: EtcdLease | None = None
        self._beaten = LEASE_KEEPER.now()
        self._acked_at: float | None = None

    def number(self) -> int:
        """The id of the present lease; asks for one if there is none.

        Raises:
            MainLoopSilent: there was no ``beat`` for as long as a lease lasts.
            StoreUnavailable: none was granted.
        """
        with self._lock:
            if self._lease is None:
                asked_at = LEASE_KEEPER.now()
                if asked_at - self._beaten > self._ttl:
                    raise MainLoopSilent(asked_at - self._beaten)
                number, ttl = self._client.grant(self._ttl)
                send = self._client.keep_alive
                self._lease = EtcdLease(number, ttl, asked_at, send, self._ended)
                self._lease.beaten = self._beaten
                self.granted_ttl = float(ttl)
                LEASE_KEEPER.keep(self._lease)
            return self._lease.number

    @property
    def acked_at(self) -> float | None:
        """When the request was sent that kept the last lease last; None: there never was one."""
        if (lease := self._lease) is not None:
            self._acked_at = lease.acked_at
        return self._acked_at

    def beat(self) -> None:
        """The owner's main loop runs."""
        self._beaten = LEASE_KEEPER.now()
        if (lease := self._lease) is not None:
            LEASE_KEEPER.beat(lease)

    def drop(self, number: int) -> None:
        """The store says that it knows no such lease."""
        if (lease := self._lease) is not None and lease.number == number:
            LEASE_KEEPER.forget(lease)
            self._ended(lease)

    def give_up(self) -> None:
        """Ends the lease in the background; if that fails, it runs out by itself."""
        if (lease := self._release()) is not None:
            self._client.revoke_later(lease.number)

    def give_back(self, timeout: float) -> None:
        """Ends the lease, and waits for it."""
        if (lease := self._release()) is not None:
            try:
                self._client.revoke(lease.number, timeout)
            except StoreUnavailable:
                return  # it runs out by itself

    def _release(self) -> EtcdLease | None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            LEASE_KEEPER.forget(lease)
        return lease

    def _ended(self, lease: EtcdLease) -> None:
        with self._lock:
            if self._lease is not lease:
                return
            self._lease, self._acked_at = None, lease.acked_at
        self._lost()
