"""One connection to the host of an embedded store."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.store_contract import StoreEvent
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

_LIMIT = 2**16
_LAST_PORT = 2**16 - 1
# Seconds after which a connection that is being closed is aborted.
_FAREWELL = 2.0

Ticked = Callable[["Message"], "Message | None"]


class HostRefused(StoreUnavailable):
    """The host will never accept this node."""


class HostUnreachable(StoreUnavailable):
    """No store answers there.

    Attributes:
        refused: no process listens there.
    """

    def __init__(self, why: str, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class HostMoved(StoreUnavailable):
    """A node answers that does not host the store, but may know who does.

    Attributes:
        where: ``host:port`` of the host; "": it is not known.
        term: of that host.
        stands: the one that answers would become a candidate if it were its turn.
    """

    def __init__(self, why: str, where: str, term: int, *, stands: bool = True) -> None:
        super().__init__(why)
        self.where = where
        self.term = term
        self.stands = stands


class HostConnection:
    """A connection to a host that has accepted us. Everything runs on the loop's thread.

    Attributes:
        store_id: of the store; a store that has lost its contents has another one.
        term: of its host.
        host: ``host:port`` of the host as a voter.
        leased: whether our session still had its lease.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        where: str,
        ticked: Ticked,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._ticked = ticked
        self._where = where
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._why = ""
        self.store_id = ""
        self.term = 0
        self.host = ""
        self.leased = False

    @classmethod
    async def open(
        cls, where: str, hello: Message, limit: float, ticked: Ticked = lambda message: None
    ) -> HostConnection:
        """Connects.

        Args:
            where: ``host:port`` at which the host listens.
            hello: what we say first.
            limit: seconds without a message.
            ticked: called with each tick; returns the answer, None: none.

        Raises:
            HostRefused: the host refuses us, as we are of another version.
            HostMoved: the host is elsewhere.
            HostUnreachable: no process listens there, or none with our protocol.
        """
        host, _, port = where.rpartition(":")
        if not port.isdecimal() or int(port) > _LAST_PORT:
            raise HostUnreachable(_no(where, "that is no host:port"))
        try:
            async with asyncio.timeout(limit) as deadline:
                streams = await _connected(host.strip("[]"), int(port), limit)
                connection = cls(*streams, where, ticked)
                try:
                    await connection._greet(hello, deadline, limit)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except TimeoutError:
            raise HostUnreachable(_no(where, f"no answer within {limit:g} s")) from None
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise HostUnreachable(_no(where, error.strerror or str(error)), refused) from None
        except (wire.WireError, EOFError):
            raise HostUnreachable(
                _no(where, "what listens there is no store of this version of elastic-runtime")
            ) from None

    async def _greet(self, hello: Message, deadline: asyncio.Timeout, limit: float) -> None:
        self._writer.write(wire.PREFACE + wire.frame(hello))
        while "welcome" not in (answer := await wire.read_frame(self._reader)):
            if (why := answer.get("refused")) is not None:
                raise HostRefused(f"the c10d store at {self._where} does not take this node: {why}")
            self._handle_control(answer)
            deadline.reschedule(asyncio.get_running_loop().time() + limit)
        welcome = wire.field(answer, "welcome", dict)
        self.store_id = wire.field(welcome, "store", str)
        self.term = wire.field(welcome, "term", int)
        self.host = wire.field(welcome, "host", str)
        self.leased = wire.field(welcome, "leased", bool)

    def _handle_control(self, message: Message) -> None:
        """Handles ticks, and that the host is elsewhere.

        Raises:
            HostMoved: the host is elsewhere.
        """
        if "tick" in message:
            if (echo := self._ticked(message)) is not None:
                self.send(echo)
        elif "moved" in message:
            where = wire.field(message, "moved", str)
            why = self._end(f"the store is at {where}" if where else "no node hosts the store now")
            stands = message.get("stands") is not False  # earlier releases do not say it
            raise HostMoved(why, where, wire.field(message, "term", int), stands=stands)

    def send(self, message: Message) -> None:
        """Sends a frame."""
        self._writer.write(wire.frame(message))

    async def ask(self, what: str, **fields: Any) -> Message:
        """Sends a request, and waits for its answer; the caller sets a deadline.

        Raises:
            StoreUnavailable: the connection has ended before.
        """
        if self._why:
            raise StoreUnavailable(self._why)
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            self.send({"do": what, "id": number, **fields})
            return await future
        finally:
            self._answers.pop(number, None)

    async def event(self) -> StoreEvent:
        """The next event; answers that come before it complete their requests.

        Raises:
            StoreUnavailable: the connection has ended.
        """
        while True:
            try:
                message = await wire.read_frame(self._reader)
                if "event" in message:
                    return wire.to_event(message)
                self._handle_control(message)
            except (OSError, EOFError):
                raise StoreUnavailable(self._end("the connection was lost")) from None
            except wire.WireError as error:
                raise StoreUnavailable(self._end(f"it said {error}")) from None
            number = message.get("re")
            request = self._answers.get(number) if isinstance(number, int) else None
            if request is not None and not request.done():
                request.set_result(message)

    def fail(self, why: str) -> None:
        """Ends the connection; ``event`` raises."""
        self._end(why)
        # Without it the host would take this process for dead.
        self.send({"do": "part"})
        self._writer.close()
        loop, transport = asyncio.get_running_loop(), self._writer.transport
        loop.call_later(_FAREWELL, transport.abort)

    def close(self) -> None:
        """Ends the connection."""
        if not self._writer.is_closing():
            self.fail("the connection was closed")

    def _end(self, why: str) -> str:
        self._why = self._why or _no(self._where, why)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(StoreUnavailable(self._why))
        return self._why


def _no(where: str, why: str) -> str:
    return f"the c10d store at {where} does not answer: {why}"


async def _connected(
    host: str, port: int, limit: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to the first address of a host that accepts.

    Args:
        host: its name or address.
        port: the port there.
        limit: seconds for all addresses; one that never answers leaves the others their share.

    Raises:
        ConnectionRefusedError: no process listens at any of them.
        OSError: at least one of them does not answer.
    """
    errors: list[OSError] = []
    addresses = await _addresses(host, port)
    for address in addresses:
        try:
            async with asyncio.timeout(limit / len(addresses)):
                return await asyncio.open_connection(*address[:2], limit=_LIMIT)
        except OSError as error:  # TimeoutError is one
            errors.append(error)
    others = [error for error in errors if not isinstance(error, ConnectionRefusedError)]
    raise (others or errors or [OSError("it has no address")])[0]


async def _addresses(host: str, port: int) -> list[Any]:
    """The addresses of a host; a look-up that hangs can be cancelled by its caller."""
    with suppress(socket.gaierror):  # an address needs no look-up, and no thread
        return _look_up(host, port, socket.AI_NUMERICHOST)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def look_up() -> None:
        try:
            addresses, error = _look_up(host, port), None
        except OSError as failed:
            addresses, error = [], failed

        def tell() -> None:
            if not found.done():
                found.set_exception(error) if error else found.set_result(addresses)

        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell)

    threads.spawn(look_up, name="look-up")
    return await found


def _look_up(host: str, port: int, flags: int = 0) -> list[Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is no name of a machine") from None
    return [address for _, _, _, _, address in found]
