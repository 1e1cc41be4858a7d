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
# Seconds in which the last word must have been sent.
_FAREWELL = 2.0

Ticked = Callable[["Message"], "Message | None"]


class NotOurs(StoreUnavailable):
    """Who listens there will never take us."""


class Unanswered(StoreUnavailable):
    """Nobody answers there.

    Attributes:
        refused: nobody listens.
    """

    def __init__(self, why: str, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class Moved(StoreUnavailable):
    """There is no store there, but perhaps elsewhere.

    Attributes:
        where: ``host:port``; "": it is not known.
        term: the number of the host there.
    """

    def __init__(self, why: str, where: str, term: int) -> None:
        super().__init__(why)
        self.where = where
        self.term = term


class Line:
    """A connection to a host that has welcomed us. Everything runs on the loop's thread.

    Attributes:
        store_id: of the store; it lasts as long as its memory.
        term: the number of its host.
        host: where the host is as a voter.
        leased: whether our session had its lease still.
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
    ) -> Line:
        """Connects.

        Args:
            where: ``host:port`` at which the host listens.
            hello: what we say first.
            limit: seconds without a word.
            ticked: called with each tick; gives what is answered.

        Raises:
            NotOurs: the host refuses us, as of another version.
            Moved: it is elsewhere.
            Unanswered: nobody listens there, or nobody who speaks our protocol.
        """
        host, _, port = where.rpartition(":")
        if not port.isdecimal() or int(port) > _LAST_PORT:
            raise Unanswered(_no(where, "that is no host:port"))
        try:
            async with asyncio.timeout(limit) as deadline:
                streams = await _connected(host.strip("[]"), int(port), limit)
                line = cls(*streams, where, ticked)
                try:
                    await line._greet(hello, deadline, limit)
                except BaseException:
                    line.close()
                    raise
                return line
        except TimeoutError:
            raise Unanswered(_no(where, f"no answer within {limit:g} s")) from None
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise Unanswered(_no(where, error.strerror or str(error)), refused) from None
        except (wire.WireError, EOFError):
            raise Unanswered(
                _no(where, "whoever listens there is no store of this version of elastic-runtime")
            ) from None

    async def _greet(self, hello: Message, deadline: asyncio.Timeout, limit: float) -> None:
        self._writer.write(wire.PREFACE + wire.frame(hello))
        while "welcome" not in (answer := await wire.read_frame(self._reader)):
            if (why := answer.get("refused")) is not None:
                raise NotOurs(f"the c10d store at {self._where} does not take this node: {why}")
            self._take_notice(answer)
            deadline.reschedule(asyncio.get_running_loop().time() + limit)
        welcome = wire.field(answer, "welcome", dict)
        self.store_id = wire.field(welcome, "store", str)
        self.term = wire.field(welcome, "term", int)
        self.host = wire.field(welcome, "host", str)
        self.leased = wire.field(welcome, "leased", bool)

    def _take_notice(self, message: Message) -> None:
        """Takes in what is no event and no answer.

        Raises:
            Moved: the host says so.
        """
        if "tick" in message:
            if (echo := self._ticked(message)) is not None:
                self.send(echo)
        elif "moved" in message:
            where = wire.field(message, "moved", str)
            why = self._end(f"the store is at {where}" if where else "nobody hosts the store now")
            raise Moved(why, where, wire.field(message, "term", int))

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
        """The next event; answers that come before it go to who asked.

        Raises:
            StoreUnavailable: the connection has ended.
        """
        while True:
            try:
                message = await wire.read_frame(self._reader)
                if "event" in message:
                    return wire.to_event(message)
                self._take_notice(message)
            except (OSError, EOFError):
                raise StoreUnavailable(self._end("the connection was lost")) from None
            except wire.WireError as error:
                raise StoreUnavailable(self._end(f"it said {error}")) from None
            asked = self._answers.get(message.get("re", 0))
            if asked is not None and not asked.done():
                asked.set_result(message)

    def fail(self, why: str) -> None:
        """Ends the connection; ``event`` raises."""
        self._end(why)
        # It must not look as if this process had died.
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
    """Connects to the first address of a host where somebody listens.

    Args:
        host: its name or address.
        port: the port there.
        limit: seconds for all addresses; one that never answers leaves the others their share.

    Raises:
        ConnectionRefusedError: nobody listens at any of them.
        OSError: there is no telling.
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
    """The addresses of a host; a look-up that hangs is waited for by nobody."""
    with suppress(socket.gaierror):  # what is an address already needs no thread
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
