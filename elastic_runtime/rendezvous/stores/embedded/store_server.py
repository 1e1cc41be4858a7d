"""Where clients come in: at the host, and at every node that may host one day.

Everything runs on one event loop, so a request is one step that nothing else comes between. What a
client costs is bounded: how long it may take to say who it is, how much may lie unread for it, how
large a request and all values together may be. Whoever says anything else than the protocol gets
one line that says what is here.

A server *follows* (it hosts nothing, and says who does), *stands* for host (clients wait at it for
the end of the election, and echo its ticks), or *hosts*; ``host_succession`` decides.
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
from elastic_runtime.system.listening import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Collection

    from elastic_runtime.rendezvous.store_contract import StoreEvent
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

# Seconds: until a client must have said who it is; without a word before it is dropped.
_PATIENCE = 5.0
_SILENCE = 60.0
# How often leases and the mandate are looked at, and after which pause this process was stopped
# meanwhile: nobody could keep a lease then (seconds).
_LOOK = 0.1
_STOPPED = 1.0
# Clients that have not said who they are, at a time; the one that has been there longest goes.
_MOST_STRANGERS = 256
# Bytes that may lie unread for one client.
_MOST_UNREAD = 2 * wire.MOST

_ALONE = "its host has lost sight of most of the nodes that could host it instead"
_NO_FRAME = (
    f"this is the store of an elastic-runtime job (elastic-runtime {__version__}); it understands "
    "elastic-run and elasticctl of the same version only\n"
)


class _Client:
    """One connection.

    Attributes:
        hello: what it has said first.
        voter: who it is as a voter; None: it may not host.
        session: from when it was welcomed.
        parts: how it has said that it goes.
    """

    def __init__(self, writer: asyncio.StreamWriter, hello: Message) -> None:
        self._writer = writer
        self.hello = hello
        self.voter = wire.to_voter(hello["voter"]) if hello.get("voter") is not None else None
        self.session: Session | None = None
        self.parts = ""
        self._list = -1

    def send(self, message: Message) -> None:
        """Sends a frame, unless too much lies unread already: then it hangs up."""
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.hang_up()
        else:
            self._writer.write(wire.frame(message))

    def tell(self, event: StoreEvent) -> None:
        """Sends an event."""
        self.send(wire.of_event(event))

    def tick(self, message: Message, voters: Voters) -> None:
        """Sends a tick, with the list of voters if it has another one."""
        if self._list != voters.version:
            self._list = voters.version
            message = {**message, "voters": wire.of_voters(voters)}
        self.send(message)

    def hang_up(self) -> None:
        """Ends the connection at once."""
        self.parts = self.parts or "dropped"
        self._writer.transport.abort()


class StoreServer:
    """Listens from now on until it is closed.

    Args:
        listener: where clients come in.
        where: ``host:port`` under which others reach the listener; "": its own address.
        founds: it hosts a store of its own at once; else it follows.

    Attributes:
        port: of the listener.
        me: as a voter.
        store_id: lasts as long as what is stored.
        term: the number of the host that it follows, or is.
        host: where that is; "": it does not know.
    """

    def __init__(self, listener: socket.socket, where: str = "", *, founds: bool = True) -> None:
        address, self.port = listener.getsockname()[:2]
        self.me = Voter(secrets.token_hex(8), where or f"{address}:{self.port}")
        self.store_id = ""
        self.term = 0
        self.host = ""
        self.ballot: Ballot | None = None
        self._not_before = 0.0
        self._sessions = Sessions()
        self._clients: dict[_Client, None] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._servers: list[asyncio.Server] = []
        self._listeners = [listener]
        self._looked = time.monotonic()
        self._ticked = 0.0
        self._loop = Loop()
        self._patrol: asyncio.Task[None] | None = None
        if founds:
            self.found()
        self._loop.post(lambda: self._begin(listener))

    def _begin(self, listener: socket.socket) -> None:
        self._patrol = self._loop.loop.create_task(self._look_around())
        self.listen_at(listener)

    def listen_at(self, listener: socket.socket) -> None:
        """Lets clients come in there as well; on the loop's thread."""
        self._listeners.append(listener)

        async def accept() -> None:
            start = asyncio.start_server(self._serve, sock=listener, backlog=BACKLOG)
            self._servers.append(await start)

        task = self._loop.loop.create_task(accept())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Hangs up, and stops listening. Idempotent."""
        with suppress(RuntimeError, TimeoutError):  # it was closed before
            self._loop.run(self._end(), _PATIENCE)
        for listener in self._listeners:  # also one that has not begun to serve
            listener.close()
        self._loop.release()

    async def _end(self) -> None:
        if self._patrol is not None:
            self._patrol.cancel()
        for server in self._servers:
            server.close()
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ what it is

    @property
    def hosts(self) -> bool:
        """Whether it is the host, with or without a mandate at this moment."""
        return self.ballot is not None and self.ballot.hosts

    def found(self, term: int = 1, wait: float = 0.0) -> None:
        """Hosts a store as the first one.

        Args:
            term: its number as a host.
            wait: seconds in which it serves nobody: another host may still tell of itself.
        """
        self._not_before = time.monotonic() + wait
        self._take_office(succession.begin(self.me), term)

    def stand(self, voters: Voters, dead: Collection[str], term: int) -> None:
        """Wants to host, under this term, after another host is lost."""
        if self.ballot is None:
            self._take_office(succession.stand(self.me, voters, dead, time.monotonic()), term)

    def _take_office(self, ballot: Ballot, term: int) -> None:
        self.store_id, self.term, self.host = secrets.token_hex(16), term, ""
        self.ballot = ballot
        self._sessions = Sessions(held=_ALONE)
        self._ticked = 0.0

    def follow(self, where: str, term: int) -> None:
        """Hosts nothing from now on; the host of this term is there, "": it is not known."""
        self.ballot, self.host = None, where
        self.term = max(self.term, term)
        for client in tuple(self._clients):
            client.send({"moved": where, "term": self.term})
            client.hang_up()

    def vouch(self) -> None:
        """This node itself obeys its server, and nobody else; to be said again and again."""
        if self.ballot is not None:
            version = self.ballot.voters.version
            now = time.monotonic()
            self.ballot = succession.echoed(self.ballot, self.me.id, now, version)

    async def _look_around(self) -> None:
        while True:
            self._notice_a_stop()
            self._look_at_mandate()
            if self._served():
                self._sessions.look_at_leases()
            await asyncio.sleep(_LOOK)

    def _notice_a_stop(self) -> None:
        """Whoever was silent only because we did not run is not blamed."""
        now = time.monotonic()
        if now - self._looked > _STOPPED:
            self._sessions.renew_all()
        self._looked = now

    def _look_at_mandate(self) -> None:
        """Ticks, and begins or ends to serve."""
        now = time.monotonic()
        if self.ballot is None:
            return
        if self.hosts:
            self.vouch()
        before, self.ballot = self.ballot, succession.turn(self.ballot, now)
        serves = self._served()
        if serves and self._sessions.held:
            self._sessions.go_on()
            for client in tuple(self._clients):
                if client.session is None:
                    self._welcome(client)
        elif not serves and not self._sessions.held:
            self._sessions.hold(_ALONE)
        if now >= self._ticked + succession.PACE or self.ballot.voters != before.voters:
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
        return ballot.may_write(now)

    # ------------------------------------------------------------ one client

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        # asyncio does so only for sockets that it has made itself.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._strangers) >= _MOST_STRANGERS:
            next(iter(self._strangers)).transport.abort()
        self._strangers[writer] = None
        try:
            async with asyncio.timeout(_PATIENCE):
                hello = await self._hear_hello(reader, writer)
            self._strangers.pop(writer, None)
            if hello is not None:
                await self._talk(_Client(writer, hello), reader, writer)
        except (OSError, EOFError, wire.WireError):  # TimeoutError is among them
            pass
        finally:
            self._strangers.pop(writer, None)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _hear_hello(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        heard = b""
        while heard != wire.PREFACE:
            heard += await reader.read(len(wire.PREFACE) - len(heard)) or b"\0"
            if not wire.PREFACE.startswith(heard):
                await _tell_stranger(heard, reader, writer)
                return None
        hello = await wire.read_frame(reader, wire.MOST_HELLO)
        if (spoken := hello.get("protocol")) == wire.PROTOCOL:
            return hello
        told = (
            f"the store speaks protocol {wire.PROTOCOL} (elastic-runtime {__version__}), this node "
            f"{spoken} ({hello.get('release')}): install the same version on all nodes"
        )
        writer.write(wire.frame({"refused": told}))
        await _part(reader, writer)
        return None

    async def _talk(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        term = wire.field(client.hello, "term", int)
        self.hear_of(wire.field(client.hello, "host", str), term)
        if self.ballot is None or client.hello.get("asks") is True:
            here = self.me.where if self.ballot is not None else self.host
            client.send({"moved": here, "term": self.term})
            await _part(reader, writer)
            return
        if term > self.term and self._served():
            self.term = term + 1  # else a voter that has stood for host could not obey this one
        self._clients[client] = None
        silently = False
        try:
            self._arrive(client)
            while not client.parts:
                async with asyncio.timeout(_SILENCE):
                    message = await wire.read_frame(reader)
                self._obey(message, client)
                await writer.drain()
            if client.parts == "bye":
                await _part(reader, writer)
        except asyncio.IncompleteReadError as error:
            silently = not error.partial and not client.parts
            raise
        finally:
            self._leave(client, silently)

    def hear_of(self, where: str, term: int) -> None:
        """Somebody hosts elsewhere under that term; whoever hosts under a lower one yields."""
        mine = self.me.where if self.hosts else ""
        if where and where != self.me.where and (term, where) > (self.term, mine or where):
            self.follow(where, term)

    def _arrive(self, client: _Client) -> None:
        assert self.ballot is not None
        if client.voter is not None:
            known = client.hello.get("voters")
            voters = wire.to_voters(known) if known is not None else None
            self.ballot = succession.came(self.ballot, client.voter, voters)
        self._look_at_mandate()  # a founder has one before it has looked for the first time
        self._tick(client, time.monotonic())
        if client.session is None and self.hosts and time.monotonic() >= self._not_before:
            self._welcome(client)

    def _welcome(self, client: _Client) -> None:
        hello = client.hello
        ttl = min(max(1.0, wire.field(hello, "ttl", float)), 86400.0)
        run, token = wire.field(hello, "run", str), wire.field(hello, "session", str)
        self._notice_a_stop()
        session = self._sessions.open(run, token, ttl)
        if isinstance(session.client, _Client):  # its former connection leads nowhere
            session.client.hang_up()
        session.client, client.session = client, session
        welcome = {"store": self.store_id, "term": self.term, "leased": session.store.leased}
        client.send({"welcome": {**welcome, "host": self.me.where}, "release": __version__})
        session.store.look(wire.field(hello, "wide", bool), _without(hello))
        session.store.start(wire.field(hello, "own", str), client.tell)

    def _leave(self, client: _Client, silently: bool) -> None:
        self._clients.pop(client, None)
        session = client.session
        if session is not None and session.client is client:
            session.client = None
            session.store.mute()
        others = {other.voter.id for other in self._clients if other.voter is not None}
        if self.ballot is not None and client.voter is not None and client.voter.id not in others:
            goodbye, now = client.parts == "bye", time.monotonic()
            self.ballot = succession.ended(self.ballot, client.voter.id, now, goodbye, silently)

    def _obey(self, message: Message, client: _Client) -> None:
        """Does what a client says."""
        self._notice_a_stop()
        self._look_at_mandate()
        asked, session = wire.field(message, "do", str), client.session
        if asked == "part":
            client.parts = "part"
        elif asked == "echo":
            if self.ballot is not None and client.voter is not None:
                sent = min(wire.field(message, "tick", float), time.monotonic())
                version = wire.field(message, "version", int)
                self.ballot = succession.echoed(self.ballot, client.voter.id, sent, version)
        elif session is None or session.client is not client:
            return  # what it says is old
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


async def _tell_stranger(
    heard: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Says what is here, to a browser in its own words."""
    if heard[:1] in (b"G", b"P", b"H", b"D", b"O", b"T", b"C"):  # the methods of HTTP
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(_NO_FRAME)}\r\n"
        writer.write(f"{head}Content-Type: text/plain\r\nConnection: close\r\n\r\n".encode())
    writer.write(_NO_FRAME.encode())
    await _part(reader, writer)


async def _part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Lets what was said arrive: a connection that ends with bytes unread takes it back."""
    with suppress(OSError):
        writer.write_eof()
        async with asyncio.timeout(_PATIENCE):
            while await reader.read(65536):
                pass
