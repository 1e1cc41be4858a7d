"""Probes: asking a node whether it is alive, without the store.

Each agent answers on a TCP port, but only to a client that proves that it knows the job's secret
(``protocol.peer_proof``). The question is one line of JSON with the uuid of the node. The answer is
one line, too: the node of this uuid says how far it has come, any other one only that it is not. A
client without the secret gets no answer, whatever it sends.

Only a refused connection, or a "no" from an agent that knows the secret, proves a death. Silence
proves nothing, and the lease decides then; nor does any answer without the secret.

Both ends are one event loop in one thread, however many ask or are asked, and each exchange has one
deadline: no client can be slow enough to be in the way of another one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elastic_runtime.protocol.peer_proof import (
    NONCE,
    PROBES,
    PROOF,
    Exchange,
    hello,
    key_for,
    new_nonce,
)
from elastic_runtime.rendezvous.core.membership_events import ALIVE, BUSY, OTHER, REFUSED, SILENT
from elastic_runtime.system import threads
from elastic_runtime.system.listening import BACKLOG, listen, stop_listening

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_MAX_LINE = 4096
_HELLO = hello(PROBES)
_MAX_ANSWER = NONCE + PROOF + _MAX_LINE
# How long the server serves one client, in seconds. How long a probe may take at the other end, and
# with it when a node counts as silent, is ``defaults.PROBE_TIMEOUT``.
_SERVER_PATIENCE = 1.0
# Clients at the same time; when one more comes, the one that has been there longest has to go.
_MOST_CLIENTS = 512
# Probes under way at the same time; further ones wait for their turn.
_MOST_PROBES = 128
# Threads that look names up, where nodes have names for addresses.
_RESOLVERS = 2
_CLOSE = 2.0


class ProbeServer:
    """Answers probes from a thread of its own.

    Args:
        address: where to listen, ``""`` for all interfaces.
        answer: gives the fields of the answer, among them ``node``, this node's uuid. Called in the
            server's thread; a client that asks for another uuid never sees it.
        secret: gives the job's, "" as long as it is not known: no client is answered then.
        patience: seconds that a client may take.
    """

    def __init__(
        self,
        address: str,
        answer: Callable[[], dict[str, Any]],
        secret: Callable[[], str],
        patience: float = _SERVER_PATIENCE,
    ) -> None:
        self._answer = answer
        self._secret = secret
        self._patience = patience
        self._clients: dict[asyncio.Task[Any], None] = {}
        self._socket = listen(address)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threads.spawn(self._run, name="probe-server")

    def close(self) -> None:
        """Stops listening: from now on probes are refused."""
        with suppress(RuntimeError):  # it has been closed before
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_CLOSE)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        # Without descriptors for another client, for one: it is tried again.
        self._loop.set_exception_handler(lambda loop, context: None)
        server = await asyncio.start_server(
            self._serve, sock=self._socket, limit=_MAX_LINE, backlog=BACKLOG
        )
        await self._over.wait()
        await stop_listening(server)  # the clients' tasks end with the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= _MOST_CLIENTS:
            next(iter(self._clients)).cancel()
        self._clients[task] = None
        try:
            async with asyncio.timeout(self._patience):
                await self._talk(reader, writer)
        except Exception:  # one answer that fails must not be the last one
            pass
        finally:
            self._clients.pop(task, None)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(len(_HELLO)) != _HELLO:
            return
        key = key_for(PROBES, self._secret())
        exchange = Exchange(key, server=new_nonce(), client=await reader.readexactly(NONCE))
        writer.write(exchange.server)
        proof = await reader.readexactly(PROOF)
        question = await reader.readuntil(b"\n")
        if exchange.is_asked(proof, question):
            answer = json.dumps(self._reply(question)).encode() + b"\n"
            writer.write(exchange.answering(answer) + answer)
            writer.close()
            await writer.wait_closed()

    def _reply(self, line: bytes) -> dict[str, Any]:
        """The answer to a client that knows the secret."""
        answer = self._answer()
        return answer if answer["node"] == json.loads(line)["node"] else {"node": ""}


class _Asking:
    """The client's side of one exchange, without its I/O: what it sends for what it receives.

    Attributes:
        first: what it sends before it has received anything.
    """

    def __init__(self, node: str, secret: str) -> None:
        self._node = node
        self._key = key_for(PROBES, secret)
        self._nonce = new_nonce()
        self._exchange: Exchange | None = None
        self._heard = b""
        self.first = _HELLO + self._nonce

    @property
    def over(self) -> bool:
        """Nothing more is to be expected."""
        return self._heard.endswith(b"\n", NONCE + PROOF) or len(self._heard) > _MAX_ANSWER

    def receive(self, data: bytes) -> bytes:
        """Takes in received bytes; returns the bytes to be sent."""
        self._heard += data
        if self._exchange is not None or len(self._heard) < NONCE:
            return b""
        self._exchange = Exchange(self._key, server=self._heard[:NONCE], client=self._nonce)
        question = json.dumps({"node": self._node}).encode() + b"\n"
        return self._exchange.asking(question) + question

    def answer(self) -> dict[str, Any]:
        """The answer, once all is received.

        Raises:
            ConnectionResetError: there is none, or none of an agent that knows the secret.
        """
        proof, line = self._heard[NONCE : NONCE + PROOF], self._heard[NONCE + PROOF :]
        if self._exchange is None or not self._exchange.is_answered(proof, line):
            # Perhaps it is ending or starting; perhaps it is another program.
            raise ConnectionResetError("no valid answer (closed, or not an agent of this job)")
        answer: dict[str, Any] = json.loads(line)
        return answer


def ask_node(node: str, address: str, port: int, timeout: float, secret: str) -> dict[str, Any]:
    """Asks the agent at ``address:port`` whether it is this node.

    Args:
        node: its uuid.
        address: host name or address.
        port: its probe port.
        timeout: seconds for the whole exchange.
        secret: the job's.

    Returns:
        Its answer. ``node`` in it is empty if it is not the one that was asked for.

    Raises:
        ConnectionRefusedError: nothing listens there.
        OSError: no answer (``TimeoutError`` included), or none with a proof of the secret.
    """
    deadline = time.monotonic() + timeout
    asking = _Asking(node, secret)
    with socket.create_connection((address, port), timeout=timeout) as connection:
        connection.sendall(asking.first)
        while not asking.over:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole answer in time")
            connection.settimeout(left)
            data = connection.recv(_MAX_LINE)
            if not data:
                break
            connection.sendall(asking.receive(data))
    return asking.answer()


def probe_node(node: str, address: str, port: int, timeout: float, secret: str) -> str:
    """Probes a node, once.

    Returns:
        ``alive``, ``busy`` (alive, too), ``refused``, ``other`` (another agent process answers) or
        ``silent`` (also if a stranger answers).
    """
    try:
        return _read_answer(node, ask_node(node, address, port, timeout, secret))
    except ConnectionRefusedError:
        return REFUSED
    except OSError:
        return SILENT


def _read_answer(node: str, body: dict[str, Any]) -> str:
    if body.get("node") != node:
        return OTHER
    return BUSY if body.get("busy") is True else ALIVE


class Prober:
    """Sends probes from a thread of its own, many at a time, and at most one of each node.

    Most nodes never send a probe: the thread begins with the first probe. ``probe`` and ``close``
    are for one thread at a time.

    Args:
        timeout: seconds that a probe may take, from when it is its turn; an agent gives
            ``Timeouts.probe_timeout``.
        done: called with the node and the answer, in the prober's thread; must not block.
    """

    def __init__(self, timeout: float, done: Callable[[str, str], None]) -> None:
        self._timeout = timeout
        self._done = done
        self._loop = asyncio.new_event_loop()
        self._turn = asyncio.Semaphore(_MOST_PROBES)
        self._under_way: set[str] = set()  # the loop's thread only
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None

    def probe(self, node: str, address: str, port: int, secret: str) -> None:
        """Sends a probe; ``done`` follows, unless one of this node is under way already.

        Args:
            node, address, port, secret: as for ``ask_node``.
        """
        with suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(self._begin, node, address, port, secret)
            if self._thread is None:
                self._loop.set_default_executor(ThreadPoolExecutor(_RESOLVERS, "probe-names"))
                self._thread = threads.spawn(self._run, name="prober")

    def close(self) -> None:
        """Ends the thread; probes under way come to nothing."""
        if self._thread is None:
            self._loop.close()
            return
        with suppress(RuntimeError):  # it has been closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda loop, context: None)
        try:
            self._loop.run_forever()
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()  # a look-up that hangs is not waited for

    def _begin(self, node: str, address: str, port: int, secret: str) -> None:
        if node in self._under_way:
            return
        self._under_way.add(node)
        task = self._loop.create_task(self._probe(node, address, port, secret))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            threads.report_crash(error)

    async def _probe(self, node: str, address: str, port: int, secret: str) -> None:
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout):
                    answer = _read_answer(
                        node, await self._ask(_Asking(node, secret), address, port)
                    )
            except ConnectionRefusedError:
                answer = REFUSED
            # No thread for the look-up of a name; one that can be none, as with an empty part.
            except (OSError, RuntimeError, ValueError):
                answer = SILENT
        self._under_way.discard(node)
        self._done(node, answer)

    async def _ask(self, asking: _Asking, address: str, port: int) -> dict[str, Any]:
        with await self._connect(address, port) as connection:
            await self._loop.sock_sendall(connection, asking.first)
            while not asking.over:
                data = await self._loop.sock_recv(connection, _MAX_LINE)
                if not data:
                    break
                if said := asking.receive(data):
                    await self._loop.sock_sendall(connection, said)
            return asking.answer()

    async def _connect(self, address: str, port: int) -> socket.socket:
        found = await self._addresses(address, port)
        errors: list[OSError] = []
        for family, kind, protocol, _, target in found:
            try:
                connection = socket.socket(family, kind, protocol)
            except OSError as error:  # this machine has no IPv6, for one
                errors.append(error)
                continue
            connection.setblocking(False)
            try:
                await self._loop.sock_connect(connection, target)
                return connection
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    raise
                errors.append(error)
        # Only if all that the name stands for refuses, nothing is there.
        others = [error for error in errors if not isinstance(error, ConnectionRefusedError)]
        raise (others or errors or [OSError(f"{address} has no address")])[0]

    async def _addresses(self, address: str, port: int) -> list[Any]:
        with suppress(socket.gaierror):  # what is an address already needs no thread
            return socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        return await self._loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
