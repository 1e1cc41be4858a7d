"""The server of clients: at the host, and at every node that may host later.

Everything runs on one event loop, so each request is atomic. The cost of a client is bounded: the
time until its first message, the bytes that it has not read yet, the size of a request, and that
of all values together. A client of another protocol gets one line that says what this is.

A server is a *follower* (it tells clients who hosts), a *candidate* (clients wait for the end of
the election, and echo its ticks), or the *host*; ``host_succession`` decides.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elastic_runtime import __version__
from elastic_runtime.rendezvous.stores.embedded import host_succession as succession
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.event_loop import Loop
from elastic_runtime.rendezvous.stores.embedded.host_succession import Ballot, Voter, Voters
from elastic_runtime.rendezvous.stores.embedded.store_sessions import Session, Sessions
from elastic_runtime.system.listening import BACKLOG, stop_listening

if TYPE_CHECKING:
    from collections.abc import Collection

    from elastic_runtime.rendezvous.store_contract import StoreEvent
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

# Seconds: until a client must have sent its first message, or taken the last one; without a message
# until it is dropped.
_CLIENT_TIMEOUT = 5.0
_SILENCE = 60.0
# How often leases and the quorum are checked; a longer gap than the second one means that this
# process was stopped, so that no client could renew its lease (seconds).
_CHECK = 0.1
_STOPPED = 1.0
# Clients without a first message, at a time; if there are more, the oldest is dropped.
_MOST_UNIDENTIFIED = 256
# Bytes that one client may leave unread.
_MOST_UNREAD = 2 * wire.MAX_FRAME

_ALONE = "its host has no contact with most of the nodes that could host it instead"
_NO_FRAME = (
    f"this is the store of an elastic-runtime job (elastic-runtime {__version__}); it understands "
    "elastic-run and elasticctl of the same version only\n"
)


class _Client:
    """One connection.

    Attributes:
        hello: its first message.
        voter: its id and address as a voter; None: it may not host.
        session: None until it is welcomed.
        parts: why it disconnects, in the words of the protocol; "": it does not.
    """

    def __init__(self, writer: asyncio.StreamWriter, hello: Message) -> None:
        self._writer = writer
        self.hello = hello
        self.voter = wire.to_voter(hello["voter"]) if hello.get("voter") is not None else None
        self.session: Session | None = None
        self.parts = ""
        self._list = -1

    def send(self, message: Message) -> None:
        """Sends a frame; disconnects a client that has left too much unread."""
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.disconnect()
        else:
            self._writer.write(wire.frame(message))

    def tell(self, event: StoreEvent) -> None:
        """Sends an event."""
        self.send(wire.of_event(event))

    def tick(self, message: Message, voters: Voters) -> None:
        """Sends a tick, with the list of voters if the client does not have it yet."""
        if self._list != voters.version:
            self._list = voters.version
            message = {**message, "voters": wire.of_voters(voters)}
        self.send(message)

    def disconnect(self) -> None:
        """Ends the connection at once."""
        self.parts = self.parts or "dropped"
        self._writer.transport.abort()


class StoreServer:
    """Listens from now on until it is closed.

    Args:
        listener: where clients connect.
        where: ``host:port`` under which others reach the listener; "": its own address.
        creates_store: it hosts a new store at once; else it is a follower.

    Attributes:
        port: of the listener.
        me: its id and address as a voter.
        store_id: changes when the contents are lost.
        term: of the host that it follows, or is.
        host: ``host:port`` of that host; "": unknown.
    """

    def __init__(
        self, listener: socket.socket, where: str = "", *, creates_store: bool = True
    ) -> None:
        address, self.port = listener.getsockname()[:2]
        self.me = Voter(secrets.token_hex(8), where or f"{address}:{self.port}")
        # Who founds a store alone has no node here that would become a candidate.
        self._stands = not creates_store
        self.store_id = ""
        self.term = 0
        self.host = ""
        self.ballot: Ballot | None = None
        self._not_before = 0.0
        self._sessions = Sessions()
        self._clients: dict[_Client, None] = {}
        self._unidentified: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._servers: list[asyncio.Server] = []
        self._listeners = [listener]
        self._ends = False
        self._checked = time.monotonic()
        self._ticked = 0.0
        self._loop = Loop()
        self._patrol_task: asyncio.Task[None] | None = None
        if creates_store:
            self.create_store()
        self._loop.post(lambda: self._begin(listener))

    def _begin(self, listener: socket.socket) -> None:
        self._patrol_task = self._loop.loop.create_task(self._patrol())
        self.listen_at(listener)

    def listen_at(self, listener: socket.socket) -> None:
        """Accepts clients there as well; on the loop's thread."""
        self._listeners.append(listener)

        async def accept() -> None:
            server = await asyncio.start_server(
                self._serve, sock=listener, backlog=BACKLOG, start_serving=False
            )
            self._servers.append(server)  # before it serves: whatever serves is closed
            await server.start_serving()

        task = self._loop.loop.create_task(accept())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Closes all connections, and stops listening. Idempotent."""
        with suppress(RuntimeError, TimeoutError):  # it is closed already
            self._loop.run(self._end(), _CLIENT_TIMEOUT)
        for listener in self._listeners:  # also one that has not begun to serve
            listener.close()
        self._loop.release()

    async def _end(self) -> None:
        self._ends = True
        if self._patrol_task is not None:
            self._patrol_task.cancel()
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        for server in self._servers:
            await stop_listening(server)
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ what it is

    @property
    def hosts(self) -> bool:
        """Whether it is the host, with or without a quorum at the moment."""
        return self.ballot is not None and self.ballot.hosts

    def create_store(self, term: int = 1, wait: float = 0.0) -> None:
        """Becomes the host of a new store.

        Args:
            term: its term.
            wait: seconds in which it serves no request: the host of an older store may connect.
        """
        self._not_before = time.monotonic() + wait
        self._begin_term(succession.first_host(self.me), term)

    def become_candidate(self, voters: Voters, dead: Collection[str], term: int) -> None:
        """Becomes a candidate in this term, after another host is lost."""
        if self.ballot is None:
            self._begin_term(succession.candidate(self.me, voters, dead, time.monotonic()), term)

    def _begin_term(self, ballot: Ballot, term: int) -> None:
        self.store_id, self.term, self.host = secrets.token_hex(16), term, ""
        self.ballot = ballot
        self._sessions = Sessions(paused=_ALONE)
        self._ticked = 0.0

    def follow(self, where: str, term: int) -> None:
        """Becomes a follower of the host at ``where`` ("": unknown) in this term."""
        self.ballot, self.host = None, where
        self.term = max(self.term, term)
        for client in tuple(self._clients):
            client.send({"moved": where, "term": self.term})
            client.disconnect()

    def promise_to_itself(self) -> None:
        """Counts this node's own promise to its server, which has to be renewed as others are."""
        if self.ballot is not None:
            version = self.ballot.voters.version
            now = time.monotonic()
            self.ballot = succession.tick_echoed(self.ballot, self.me.id, now, version)

    async def _patrol(self) -> None:
        while True:
            self._notice_a_pause()
            self._check_quorum()
            if self._served():
                self._sessions.end_overdue()
            await asyncio.sleep(_CHECK)

    def _notice_a_pause(self) -> None:
        """After a pause of this process: no client could be heard, so no lease may end of it."""
        now = time.monotonic()
        if now - self._checked > _STOPPED:
            self._sessions.renew_all()
        self._checked = now

    def _check_quorum(self) -> None:
        """Sends ticks; starts or stops serving requests."""
        now = time.monotonic()
        if self.ballot is None:
            return
        if self.hosts:
            self.promise_to_itself()
        before, self.ballot = self.ballot, succession.advance(self.ballot, now)
        serves = self._served()
        if serves and self._sessions.paused:
            self._sessions.resume()
            for client in tuple(self._clients):
                if client.session is None:
                    self._welcome(client)
        elif not serves and not self._sessions.paused:
            self._sessions.pause(_ALONE)
        if now >= self._ticked + succession.TICK or self.ballot.voters != before.voters:
            self._ticked = now
            for client in tuple(self._clients):
                self._tick(client, now)

    def _tick(self, client: _Client, now: float) -> None:
        if self.ballot is not None:
            tick = {"tick": now, "of": self.store_id, "term": self.term}
            client.tick(tick, self.ballot.voters)

    def _served(self) -> bool:
        now, ballot = time.monotonic(), self.ballot
        if ballot is None or not ballot.hosts or now < self._not_before:
            return False
        return ballot.has_quorum(now)

    # ------------------------------------------------------------ one client

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ends:  # it came at the last moment
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        # asyncio does so only for sockets that it has made itself.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._unidentified) >= _MOST_UNIDENTIFIED:
            next(iter(self._unidentified)).transport.abort()
        self._unidentified[writer] = None
        try:
            async with asyncio.timeout(_CLIENT_TIMEOUT):
                hello = await self._read_hello(reader, writer)
            self._unidentified.pop(writer, None)
            if hello is not None:
                await self._serve_client(_Client(writer, hello), reader, writer)
        except (OSError, EOFError, wire.WireError):  # TimeoutError is among them
            pass
        finally:
            self._unidentified.pop(writer, None)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _read_hello(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        heard = b""
        while heard != wire.PREFACE:
            heard += await reader.read(len(wire.PREFACE) - len(heard)) or b"\0"
            if not wire.PREFACE.startswith(heard):
                await _answer_foreigner(heard, reader, writer)
                return None
        hello = await wire.read_frame(reader, wire.MOST_HELLO)
        if (spoken := hello.get("protocol")) == wire.STORE_PROTOCOL:
            return hello
        refusal = (
            f"the store speaks protocol {wire.STORE_PROTOCOL} (elastic-runtime {__version__}), "
            f"this node {spoken} ({hello.get('release')}): install the same version on all nodes"
        )
        writer.write(wire.frame({"refused": refusal}))
        await _close_gently(reader, writer)
        return None

    async def _serve_client(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        term = wire.field(client.hello, "term", int)
        self.learn_of_host(wire.field(client.hello, "host", str), term)
        if self.ballot is None or client.hello.get("asks") is True:
            here = self.me.where if self.ballot is not None else self.host
            client.send({"moved": here, "term": self.term, "stands": self._stands})
            await _close_gently(reader, writer)
            return
        if term > self.term and self._served():
            self.term = term + 1  # else a voter that was a candidate could not follow this host
        self._clients[client] = None
        silently = False
        try:
            self._add_client(client)
            while not client.parts:
                async with asyncio.timeout(_SILENCE):
                    message = await wire.read_frame(reader)
                self._handle(message, client)
                await writer.drain()
            if client.parts == "bye":
                await _close_gently(reader, writer)
        except asyncio.IncompleteReadError as error:
            silently = not error.partial and not client.parts
            raise
        finally:
            self._remove_client(client, silently)

    def learn_of_host(self, where: str, term: int) -> None:
        """There is a host at ``where`` in this term; a host of a lower term follows it."""
        mine = self.me.where if self.hosts else ""
        if where and where != self.me.where and (term, where) > (self.term, mine or where):
            self.follow(where, term)

    def _add_client(self, client: _Client) -> None:
        assert self.ballot is not None
        if client.voter is not None:
            known = client.hello.get("voters")
            voters = wire.to_voters(known) if known is not None else None
            self.ballot = succession.voter_connected(self.ballot, client.voter, voters)
        self._check_quorum()  # the host of a new store has one, but has not checked yet
        self._tick(client, time.monotonic())
        if client.session is None and self.hosts and time.monotonic() >= self._not_before:
            self._welcome(client)

    def _welcome(self, client: _Client) -> None:
        hello = client.hello
        ttl = min(max(1.0, wire.field(hello, "ttl", float)), 86400.0)
        run, token = wire.field(hello, "run", str), wire.field(hello, "session", str)
        self._notice_a_pause()
        session = self._sessions.open(run, token, ttl)
        if isinstance(session.client, _Client):  # it has replaced this connection
            session.client.disconnect()
        session.client, client.session = client, session
        welcome = {"store": self.store_id, "term": self.term, "leased": session.store.leased}
        client.send({"welcome": {**welcome, "host": self.me.where}, "release": __version__})
        session.store.look(wire.field(hello, "wide", bool), _without(hello))
        session.store.start(wire.field(hello, "own", str), client.tell)

    def _remove_client(self, client: _Client, silently: bool) -> None:
        self._clients.pop(client, None)
        session = client.session
        if session is not None and session.client is client:
            session.client = None
            session.store.mute()
        others = {other.voter.id for other in self._clients if other.voter is not None}
        if self.ballot is not None and client.voter is not None and client.voter.id not in others:
            goodbye, now = client.parts == "bye", time.monotonic()
            self.ballot = succession.voter_disconnected(
                self.ballot, client.voter.id, now, goodbye, silently
            )

    def _handle(self, message: Message, client: _Client) -> None:
        """Handles one message of a client."""
        self._notice_a_pause()
        self._check_quorum()
        asked, session = wire.field(message, "do", str), client.session
        if asked == "part":
            client.parts = "part"
        elif asked == "echo":
            if self.ballot is not None and client.voter is not None:
                sent = min(wire.field(message, "tick", float), time.monotonic())
                version = wire.field(message, "version", int)
                self.ballot = succession.tick_echoed(self.ballot, client.voter.id, sent, version)
        elif session is None or session.client is not client:
            return  # a newer connection has taken the session over
        elif message.get("alive") is True:
            session.store.beat()
        if session is None or asked in ("part", "echo"):
            return
        if asked == "look":
            session.store.look(wire.field(message, "wide", bool), _without(message))
        elif asked == "follow":
            session.store.follow(wire.field(message, "own", str))
        else:
            number = wire.field(message, "id", int)
            client.send({"re": number, **self._sessions.answer(asked, message, session.store)})
            if asked == "bye":
                client.parts = "bye"


def _without(message: Message) -> frozenset[str]:
    return frozenset(wire.strings(message, "without"))


async def _answer_foreigner(
    heard: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answers a client of another protocol with what this is; a browser with HTTP."""
    if heard[:1] in (b"G", b"P", b"H", b"D", b"O", b"T", b"C"):  # the methods of HTTP
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(_NO_FRAME)}\r\n"
        writer.write(f"{head}Content-Type: text/plain\r\nConnection: close\r\n\r\n".encode())
    writer.write(_NO_FRAME.encode())
    await _close_gently(reader, writer)


async def _close_gently(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes so that the answer arrives: closing with unread bytes would discard it (a reset)."""
    with suppress(OSError):
        writer.write_eof()
        async with asyncio.timeout(_CLIENT_TIMEOUT):
            while await reader.read(65536):
                pass
