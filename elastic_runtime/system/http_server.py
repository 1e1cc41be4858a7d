"""A small HTTP server for figures and probes: it answers GET and HEAD, and nothing upsets it.

It is our own because no well-kept one holds all of what a training job needs of it: that of the
standard library has a thread for each client and no deadline for a whole request, and those with
both are dependencies that an agent must do without.

One event loop serves all clients, so that one that is slow, or silent, does not delay the others.
Each connection has one request and a deadline, and there are never too many of them. What a client
does wrong is answered, or cut off, and never shown among the output of the job.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from elastic_runtime.limits import HTTP_TIMEOUT, MAX_HTTP_CLIENTS
from elastic_runtime.system import threads
from elastic_runtime.system.listening import BACKLOG, stop_listening

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES = 8192
_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """Serves in the loop that it is started in.

    Args:
        host: an address of this machine, or a name of it; ``::`` for all addresses.
        port: 0: any free one.
        answer: gives the answer for a path, in the loop.
        patience: seconds that a client may take.

    Attributes:
        port: where it listens.

    Raises:
        OSError: the address is not ours, or the port is taken.
    """

    def __init__(
        self, host: str, port: int, answer: Callable[[str], Answer], patience: float = HTTP_TIMEOUT
    ) -> None:
        self._answer = answer
        self._patience = patience
        self._clients = 0
        self._server: asyncio.Server | None = None
        both = host == "::" and socket.has_dualstack_ipv6()
        if host == "::" and not both:
            host = "0.0.0.0"  # a machine without IPv6: these are all addresses that it has
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Bound here, so that the caller learns of a port that is taken.
        self._socket = socket.create_server((host, port), family=family, dualstack_ipv6=both)
        self.port: int = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Begins to answer."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._socket, limit=_MOST_BYTES, backlog=BACKLOG
        )

    async def close(self) -> None:
        """Stops listening; the clients' tasks end by their deadlines, or with the loop."""
        if self._server:
            await stop_listening(self._server)
        self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= MAX_HTTP_CLIENTS:
                with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(self._patience):
                        await self._talk(reader, writer)
        finally:
            self._clients -= 1
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head, answer = b"", Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"too long\n")
        else:
            answer = self._answered(head)
        writer.write(_encoded(answer, with_body=not head.startswith(b"HEAD ")))
        await writer.drain()
        writer.write_eof()
        # A connection that is closed with bytes unread takes the answer back.
        while await reader.read(_MOST_BYTES):
            pass

    def _answered(self, head: bytes) -> Answer:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Answer(HTTPStatus.BAD_REQUEST, b"this is no request of HTTP/1\n")
        if words[0] not in _METHODS:
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are answered\n")
        try:
            return self._answer(words[1].partition("?")[0])
        except Exception as error:
            text = f"there is no answer: {error!r}\n"
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, text.encode())


class HttpServerThread:
    """An ``HttpServer`` in a thread of its own, for programs without a loop; serves while open.

    Args:
        host, port, answer, patience: as of ``HttpServer``; ``answer`` is called in the thread.

    Attributes:
        port: where it listens.

    Raises:
        OSError: the address is not ours, or the port is taken.
    """

    def __init__(
        self, host: str, port: int, answer: Callable[[str], Answer], patience: float = HTTP_TIMEOUT
    ) -> None:
        self._server = HttpServer(host, port, answer, patience)
        self.port = self._server.port
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threads.spawn(self._run, name="metrics-server")

    def close(self) -> None:
        """Stops listening, and hangs up."""
        with suppress(RuntimeError):  # it has been closed before
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(HTTP_TIMEOUT)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        # Without descriptors for another client, for one: nothing for the output of a job.
        self._loop.set_exception_handler(lambda loop, context: None)
        await self._server.start()
        await self._over.wait()
        await self._server.close()


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    status = answer.status
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    head = "\r\n".join([*lines, "", ""]).encode()
    return head + answer.body if with_body else head
