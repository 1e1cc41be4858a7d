"""A node's end of an embedded store; see ``store_contract.Store``.

One connection carries requests, their answers and events. A task keeps it open: it connects again
when the connection is lost, sends a keep-alive every few seconds, and closes a connection over
which no answer comes. The session on the host lasts as long as its lease, so a short loss costs
nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elastic_runtime import __version__
from elastic_runtime.defaults import STORE_TIMEOUT
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.node_address import own_address
from elastic_runtime.rendezvous.store_contract import (
    Found,
    LeaseLost,
    Lost,
    MainLoopSilent,
    Refused,
    StoreSnapshot,
)
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.event_loop import Loop
from elastic_runtime.rendezvous.stores.embedded.store_connection import HostConnection, HostRefused
from elastic_runtime.rendezvous.stores.embedded.store_hosting import Hosting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.store_contract import (
        Listener,
        StoreEntry,
        StoreEvent,
        Transaction,
    )
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

# Seconds: between attempts to connect; after which a store that never answered is reported as lost;
# between two keep-alives at most; to say goodbye.
_RETRY = 0.1
_QUIET = 1.0
_KEEP_ALIVE = 2.0
_FAREWELL = 1.0
_MIN_TTL = 1.0

_SLOW = f"no answer within {STORE_TIMEOUT:g} s"


class EmbeddedStore:
    """One node's view of the store of one run.

    Args:
        endpoint: where the store is, or is to be.
        run_id: names the run.
        lease_ttl: seconds; at least 1 is granted.
        connect_timeout: seconds that a first call waits for the connection.
        address: where others reach this node; "": find out.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        lease_ttl: float,
        connect_timeout: float,
        address: str = "",
    ) -> None:
        self._hosting = Hosting(endpoint, address or own_address("", endpoint))
        self._hosted_here = endpoint.hosted_here
        self._run = run_id
        self._ttl = max(_MIN_TTL, lease_ttl)
        self._connect_timeout = connect_timeout
        self._token = secrets.token_hex(16)
        self._loop: Loop | None = None
        self._task: Future[None] | None = None
        self._closed = False
        # Guards the connection for the threads that wait for one.
        self._ready = threading.Condition()
        self._connection: HostConnection | None = None
        self._beaten = time.monotonic()
        # Written by the loop's thread only.
        self._own = ""
        self._wide = False
        self._without: frozenset[str] = frozenset()
        self._listener: Listener = lambda event: None
        self._store_id = ""
        self._forgot = False
        self._lost = False
        self._leased = False
        self._acked_at: float | None = None

    # ------------------------------------------------------------ the contract

    @property
    def granted_ttl(self) -> float:
        """Seconds; 0 before there is a lease."""
        return self._ttl if self._leased else 0.0

    @property
    def hosted_here(self) -> bool:
        """Whether the store is in this process, or in the one that has started it."""
        return self._hosted_here or self._hosting.hosts

    def start(self, own_key: str, listener: Listener) -> None:
        """Connects in the background and begins to deliver events."""
        self.beat()
        self._own, self._listener = own_key, listener
        self._loop = Loop()
        self._hosting.listen()
        self._task = self._loop.begin(self._stay_connected())

    def follow(self, own_key: str) -> None:
        """Changes the own key; ends the old lease."""

        def change() -> None:
            self._own, self._leased, self._acked_at = own_key, False, None
            if self._connection is not None:
                self._connection.send({"do": "follow", "own": own_key})
            else:
                self._token = secrets.token_hex(16)  # the old session ends with its lease

        self._post(change)

    def look(self, wide: bool, without: frozenset[str]) -> None:
        """Changes what is followed."""

        def change() -> None:
            self._wide, self._without = wide, without
            self._request_snapshot()

        self._post(change)

    def apply(self, transaction: Transaction) -> bool:
        """Performs a transaction."""
        connection = self._wait_for_connection()
        silent = time.monotonic() - self._beaten
        leased = any(put.leased for put in transaction.puts)
        if leased and not self._leased and silent > self._ttl:
            raise MainLoopSilent(silent)
        sent = time.monotonic()
        answer = self._ask(connection, "apply", **wire.of_transaction(transaction))
        if answer.get("silent") is True:
            raise MainLoopSilent(silent)
        self._note_lease(answer, sent)
        return wire.field(answer, "ok", bool)

    def beat(self) -> None:
        """Says that the agent's main loop runs."""
        self._beaten = time.monotonic()

    def read(self, prefix: str) -> tuple[StoreEntry, ...]:
        """All entries under a prefix."""
        return wire.to_entries(
            self._ask(self._wait_for_connection(), "read", prefix=prefix), "entries"
        )

    def runs(self) -> list[str]:
        """The ids of all runs that have left something in the store.

        Raises:
            StoreUnavailable: no answer.
        """
        return wire.strings(self._ask(self._wait_for_connection(), "runs"), "runs")

    def close(self) -> None:
        """Gives the lease back and stops; a store that is hosted here ends."""
        if self._closed:
            return
        self._closed = True
        with self._ready:
            connection = self._connection
            self._ready.notify_all()
        if self._loop is None:
            return
        if connection is not None:
            with suppress(StoreUnavailable, TimeoutError):
                self._loop.run(connection.ask("bye"), _FAREWELL)
        if self._task is not None:
            self._task.cancel()
        self._hosting.close()
        self._loop.release()

    # ------------------------------------------------------------ for other threads

    def _post(self, call: Any) -> None:
        if self._loop is not None and not self._closed:
            self._loop.post(call)

    def _wait_for_connection(self) -> HostConnection:
        with self._ready:
            if self._connection is None and not self._store_id:
                self._ready.wait_for(
                    lambda: self._connection or self._closed, self._connect_timeout
                )
            if self._connection is None or self._closed:
                raise StoreUnavailable(self._hosting.no("it is not connected"))
            return self._connection

    def _ask(self, connection: HostConnection, what: str, **fields: Any) -> Message:
        assert self._loop is not None
        alive = time.monotonic() - self._beaten <= self._ttl
        try:
            answer = self._loop.run(connection.ask(what, alive=alive, **fields), STORE_TIMEOUT)
        except TimeoutError:
            raise StoreUnavailable(self._hosting.no(_SLOW)) from None
        if (error := answer.get("error")) is not None and answer.get("silent") is not True:
            raise StoreUnavailable(self._hosting.no(str(error)))
        return answer

    # ------------------------------------------------------------ the connection

    async def _stay_connected(self) -> None:
        since = time.monotonic()
        reachable = asyncio.create_task(self._hosting.stay_reachable())
        try:
            while True:
                try:
                    connection = await self._hosting.connect(self._hello())
                    await self._serve(connection)
                except HostRefused as error:
                    self._listener(Refused(str(error)))
                    return
                except StoreUnavailable as error:
                    if self._store_id or time.monotonic() - since > _QUIET:
                        self._report_lost(str(error))
                await asyncio.sleep(_RETRY)
        finally:  # else it would listen at the endpoint for a store that has been closed
            reachable.cancel()

    def _hello(self) -> Message:
        return {
            "protocol": wire.STORE_PROTOCOL,
            "release": __version__,
            "run": self._run,
            "session": self._token,
            "ttl": self._ttl,
            "own": self._own,
            "wide": self._wide,
            "without": sorted(self._without),
        }

    async def _serve(self, connection: HostConnection) -> None:
        """Delivers the host's events until the connection is lost.

        Raises:
            StoreUnavailable: the connection is lost.
        """
        self._forgot = self._forgot or self._store_id not in ("", connection.store_id)
        kept = self._leased and connection.leased and not self._forgot
        if self._lost:
            self._lost = False
            self._listener(Found())
        if self._leased and not kept and not self._forgot:
            self._listener(LeaseLost(self._acked_at))
        self._leased = connection.leased
        with self._ready:
            self._store_id = connection.store_id
            self._connection = connection
            self._ready.notify_all()
        keep_alive = asyncio.create_task(self._keep_alive(connection))
        try:
            while True:
                self._deliver(await connection.event())
        finally:
            keep_alive.cancel()
            with self._ready:
                self._connection = None
            connection.close()

    def _deliver(self, event: StoreEvent) -> None:
        match event:
            case StoreSnapshot(entries, wide):
                event = StoreSnapshot(entries, wide, self._forgot)
                self._forgot = False
            case LeaseLost():
                self._leased = False
                event = LeaseLost(self._acked_at)
            case Lost(why):
                self._report_lost(self._hosting.no(why))
                return
            case Found():
                self._lost = False
        self._listener(event)

    def _report_lost(self, why: str) -> None:
        if not self._lost:
            self._lost = True
            self._listener(Lost(why, self._acked_at))

    def _request_snapshot(self) -> None:
        """Asks for a ``StoreSnapshot``; a connection that is not there yet will bring one."""
        if self._connection is not None:
            without = sorted(self._without)
            self._connection.send({"do": "look", "wide": self._wide, "without": without})

    # ------------------------------------------------------------ the lease

    async def _keep_alive(self, connection: HostConnection) -> None:
        """Sends keep-alives; notices a host that does not answer, or a pause of this process."""
        pace = min(_KEEP_ALIVE, self._ttl / 3)
        while True:
            sent = time.monotonic()
            try:
                async with asyncio.timeout(STORE_TIMEOUT):
                    alive = sent - self._beaten <= self._ttl
                    answer = await connection.ask("beat", alive=alive)
            except TimeoutError:
                connection.fail(_SLOW)
                return
            except StoreUnavailable:
                return
            self._hosting.answered(sent)
            if alive:
                self._note_lease(answer, sent)
            begun = time.monotonic()
            await asyncio.sleep(pace)
            if self._leased and time.monotonic() - begun > self._ttl:
                # This process was stopped. The host may have ended our lease; its message to say
                # so may still be on the way.
                self._listener(LeaseLost(self._acked_at))
                self._request_snapshot()

    def _note_lease(self, answer: Message, sent: float) -> None:
        if answer.get("leased") is True:
            self._leased, self._acked_at = True, max(sent, self._acked_at or 0.0)
