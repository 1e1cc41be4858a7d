"""Leases: how long our keys outlive us, and one thread a process that keeps them alive.

A lease is kept only while its owner's main loop lives: ``beat`` says so, and after one TTL
without it no keep-alive is sent any more. What we know of our lease is the server's last answer,
counted from when the question was *sent*: the server may have counted from later, never from
earlier. A server that restarts, or elects a leader, extends all leases; so ours may live on after
our own deadline, but we must not count on it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from elastic_runtime.clock import MonotonicClock
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.clock import Clock
    from elastic_runtime.errors import StoreUnavailable

# Keep-alives go out this often within a TTL, and after one without an answer this soon again (s).
_PER_TTL = 3
_AGAIN = 0.25


class KeepAlive(Protocol):
    """Sends one keep-alive without blocking.

    ``done`` gets the TTL in the server's answer, in seconds (not above 0: it knows no such
    lease), or the reason why there is none. It runs on a thread of the client's.
    """

    def __call__(self, lease: int, done: Callable[[int | StoreUnavailable], None]) -> None: ...


class Lease:
    """A lease that was granted to us.

    Args:
        number: its id.
        ttl: seconds, as granted.
        granted_at: when the grant was asked for, on the keeper's clock.
        send: sends a keep-alive.
        lost: called once, from any thread, when it has ended or may have.

    Attributes:
        acked_at: when the last question was sent that has an answer.
    """

    def __init__(
        self,
        number: int,
        ttl: float,
        granted_at: float,
        send: KeepAlive,
        lost: Callable[[Lease], None],
    ) -> None:
        self.number = number
        self.ttl = ttl
        self.send = send
        self.lost = lost
        self.acked_at = granted_at
        self.deadline = granted_at + ttl
        self.due = granted_at + ttl / _PER_TTL
        self.beaten = granted_at


class Keeper:
    """Keeps all leases of a process alive; its thread sleeps until the next keep-alive is due.

    Args:
        clock: the time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._wake = threading.Condition()
        self._leases: set[Lease] = set()
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """The keeper's time, in seconds."""
        return self._clock.now()

    def keep(self, lease: Lease) -> None:
        """Keeps a lease alive from now on."""
        with self._wake:
            self._leases.add(lease)
            if self._thread is None:
                self._thread = threads.spawn(self._run, name="lease-keeper")
            self._wake.notify()

    def beat(self, lease: Lease) -> None:
        """The owner's main loop lives."""
        lease.beaten = self._clock.now()

    def forget(self, lease: Lease) -> None:
        """Lets go of a lease without a word; ``lost`` is not called any more."""
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

    def _send(self, lease: Lease, now: float) -> None:
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

    def _end(self, lease: Lease) -> None:
        with self._wake:
            known = lease in self._leases
            self._leases.discard(lease)
        if known:
            lease.lost(lease)


KEEPER = Keeper()
