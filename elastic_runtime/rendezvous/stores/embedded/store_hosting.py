"""Finding the host of an embedded store, or becoming it.

A node that may host listens from its start (``store_server``) and is a voter. It looks for the host
at its last address, at the voters and at the endpoint, all at once. If no node hosts, the first
voter that answers becomes a candidate, and the others wait there (``host_succession``). Each second
a host connects to the endpoint and to former hosts, so that another host there learns of it. A node
on the endpoint's machine listens there as soon as it can, to tell new nodes where the host is.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from elastic_runtime.defaults import STORE_TIMEOUT
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.host_succession import (
    DEAD_WINDOW,
    PROMISE,
    TICK,
    first_in_line,
)
from elastic_runtime.rendezvous.stores.embedded.store_connection import (
    HostConnection,
    HostMoved,
    HostUnreachable,
)
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system.listening import listen, where_reached

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.stores.embedded.host_succession import Voters
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

# Seconds after which a host of a lower term than the last one is accepted: better than none.
_OLD_HOST_AFTER = 30.0
# Seconds of an election, at most, where no dead voter is left out.
_ELECTION = 3.0
# Seconds to wait for an answer of another node.
_LOOK = 2.0
# Seconds in which a new store serves no request: an older one may exist on another machine, whose
# host connects to the endpoint every second.
_WAIT = 1.5


class SeveralMachines(ValueError):
    """The endpoint's name stands for several machines: each of them would host a store."""


class Hosting:
    """Where the store is, as far as this node knows; and its server, if this node may host.

    Everything except ``__init__``, ``listen`` and ``close`` runs on the loop's thread.

    Args:
        endpoint: where the store is, or is to be.
        address: where others reach this node; "": at any of its addresses.

    Attributes:
        server: where this node listens; None: it may not host.
    """

    def __init__(self, endpoint: Endpoint, address: str = "") -> None:
        self._endpoint = endpoint.hosts[0]
        self._host, _, port = self._endpoint.rpartition(":")
        self._port = int(port)
        self._may_host = not endpoint.hosted_here
        self._address = address
        self.server: StoreServer | None = None
        self._endpoint_here: str | None = None
        self._hint = ""
        self._at_endpoint = False
        self._known = ""  # where the host was last
        self._former: set[str] = {self._endpoint}
        self._term = 0
        self._voters: Voters | None = None
        self._dead: set[str] = set()  # addresses at which no process listens any longer
        self._without_node: set[str] = set()  # those that have hosted, and will not stand again
        # To which store this voter has given its last promise, in which term, and until when.
        self._promised_to, self._promised_term, self._promise_ends = "", 0, 0.0
        # When the last answered request was sent; until when dead voters are left out.
        self._answered = self._dead_window_ends = float("-inf")
        self._lost_at = float("inf")

    def no(self, why: str) -> str:
        """The message that the store does not answer."""
        where = self._known or self._endpoint
        return f"the c10d store at {where} does not answer: {why}{self._hint}"

    def answered(self, sent: float) -> None:
        """The host has answered a request that was sent at this time (monotonic)."""
        self._answered = max(self._answered, sent)

    @property
    def hosts(self) -> bool:
        """Whether the store is here."""
        return self.server is not None and self.server.hosts

    def listen(self) -> None:
        """Begins to listen, if this node may host."""
        if not self._may_host or self.server is not None:
            return
        try:
            listener = where_reached(self._address).listen()
        except OSError:  # no port is left: others may host
            self._may_host = False
            return
        try:
            self._endpoint_here = listening_address(self._host.strip("[]"), self._port)
        except SeveralMachines as error:
            self._hint = f"; {error}"
        shown = f"[{self._address}]" if ":" in self._address else self._address
        port = listener.getsockname()[1]
        self.server = StoreServer(listener, f"{shown}:{port}", creates_store=False)

    def close(self) -> None:
        """Ends the store, if it is here."""
        if self.server is not None:
            self.server.close()

    # ------------------------------------------------------------ finding it

    async def connect(self, hello: Message) -> HostConnection:
        """Connects to the host; creates the store or becomes a candidate if it is our turn.

        Raises:
            HostRefused: the host will never accept this node.
            StoreUnavailable: no host is found.
        """
        self._lost_at = min(self._lost_at, time.monotonic())
        hello = {**hello, "term": max(self._term, self._promised_term), "host": "", "voter": None}
        if self.server is not None:
            hello["voter"] = list(self.server.me)
        if self._voters is not None:
            hello["voters"] = wire.of_voters(self._voters)
        silent: set[str] = set()
        try:
            connection = await self._look_everywhere(hello, silent)
        except HostUnreachable as error:
            if self._is_first_in_line(silent):
                connection = await self._stand_for_host(hello)
            elif self._create_store():
                connection = await self._go_to(self._endpoint, hello, STORE_TIMEOUT)
            else:
                raise HostUnreachable(f"{error}{self._hint}", error.refused) from None
        self._welcomed_by(connection)
        return connection

    async def _look_everywhere(self, hello: Message, silent: set[str]) -> HostConnection:
        """Asks at all addresses where the host may be, and connects to the one of highest term."""
        others = [one.where for one in self._voters.now] if self._voters is not None else []
        places = list(dict.fromkeys([self._known or self._endpoint, *others, self._endpoint]))
        if len(places) == 1:
            try:
                return await self._go_to(places[0], hello, STORE_TIMEOUT)
            except HostMoved as moved:
                if not moved.where:
                    raise HostUnreachable(str(moved)) from None
                return await self._go_to(moved.where, hello, _LOOK)
        me = self.server.me.where if self.server is not None else ""
        answers: list[HostMoved | str] = []
        tries = [asyncio.ensure_future(self._ask_for_host(one)) for one in places if one != me]
        try:
            for each in asyncio.as_completed(tries):
                answers.append(answer := await each)
                if isinstance(answer, HostMoved) and answer.where and answer.term > self._term:
                    break  # a silent node knows nothing newer
        finally:
            for one in tries:
                one.cancel()
        silent.update(one for one in answers if isinstance(one, str))
        hosts = {(one.term, one.where) for one in answers if isinstance(one, HostMoved)}
        for term, where in sorted(hosts, reverse=True):
            old = term < self._term and time.monotonic() < self._lost_at + _OLD_HOST_AFTER
            if where and not old and where not in self._dead | silent:
                return await self._go_to(where, hello, _LOOK)
        raise HostUnreachable(self.no("no node hosts it at present"), refused=True)

    async def _ask_for_host(self, where: str) -> HostMoved | str:
        """Asks a node who hosts; says so to it if this node hosts.

        Returns:
            Its answer; else ``where`` if nothing answers, "" if no process listens there.
        """
        mine = self.server.me.where if self.server is not None and self.hosts else ""
        term = self.server.term if self.server is not None else 0
        hello = {"protocol": wire.STORE_PROTOCOL, "asks": True, "term": term, "host": mine}
        try:
            (await HostConnection.open(where, hello, _LOOK)).close()
        except HostMoved as moved:
            self._dead.discard(where)
            if not moved.stands:
                self._without_node.add(where)
            return moved
        except HostUnreachable as error:
            if not error.refused:
                return where
            self._mark_dead(where)
        return ""

    def _mark_dead(self, where: str) -> None:
        """No process listens there any longer, so the one that did is dead."""
        self._dead.add(where)
        now = time.monotonic()
        if where == self._known and now < self._answered + PROMISE:
            # The host of our promise is dead, and had not removed us from its list before.
            self._promise_ends, self._dead_window_ends = 0.0, now + DEAD_WINDOW
            self._answered = float("-inf")

    async def _go_to(self, where: str, hello: Message, limit: float) -> HostConnection:
        """Connects to a host, or to a candidate, and waits until it is elected.

        Raises:
            HostUnreachable: no store answers there.
        """
        try:
            connection = await HostConnection.open(where, hello, limit, self._promise)
        except HostUnreachable as error:
            if error.refused:
                self._mark_dead(where)
            raise
        self._dead.discard(where)
        return connection

    def _welcomed_by(self, connection: HostConnection) -> None:
        self._former.add(self._known or self._endpoint)
        self._known, self._term, self._lost_at = connection.host, connection.term, float("inf")
        if self.server is not None and self.server.me.where != connection.host:
            self.server.follow(connection.host, connection.term)

    # ------------------------------------------------------------ becoming it

    def _create_store(self) -> bool:
        """Creates a store if this node can listen at the endpoint, and no other does.

        Not while a known voter listens: it may know of the present host.

        Returns:
            Whether it has created one.
        """
        voters = self._voters.now if self._voters is not None else ()
        places = {self._endpoint, *(one.where for one in voters)}
        if self.server is None or not self._dead.issuperset(places - {self.server.me.where}):
            return False
        if not (self._at_endpoint or self._listen_at_endpoint()):
            return False
        self.server.create_store(
            max(self._term, self._promised_term) + 1, 0.0 if self._alone else _WAIT
        )
        return True

    @property
    def _alone(self) -> bool:
        """Whether all nodes are on this machine, so that none can be cut off from the others."""
        return self.server is not None and self.server.me.where.startswith(("127.", "[::1]"))

    def _is_first_in_line(self, silent: set[str]) -> bool:
        if self._voters is None or self.server is None:
            return False
        passed_over = self._dead | silent | self._without_node
        return first_in_line(self._voters, passed_over) == self.server.me

    async def _stand_for_host(self, hello: Message) -> HostConnection:
        assert self.server is not None and self._voters is not None
        left = _ELECTION if self._alone else self._dead_window_ends - time.monotonic()
        dead = {one.id for one in self._voters.now if one.where in self._dead and left > 0}
        self.server.become_candidate(self._voters, dead, max(self._term, self._promised_term) + 1)
        try:
            async with asyncio.timeout(left if dead else _ELECTION):
                return await self._go_to(self.server.me.where, hello, _LOOK)
        except TimeoutError:
            raise HostUnreachable(self.no("too few nodes agree on the next host")) from None
        finally:
            if not self.hosts:
                self.server.follow("", self._term)

    def _promise(self, message: Message) -> Message | None:
        """Answers a tick with a promise, if no other promise of this node is still valid."""
        of, now = wire.field(message, "of", str), time.monotonic()
        term = wire.field(message, "term", int)
        if (given := message.get("voters")) is not None:
            voters = wire.to_voters(given)
            known = self._voters.version if self._voters is not None else 0
            if self.server is None or of == self._promised_to or voters.version > known:
                self._voters = voters
        same = of == self._promised_to and term >= self._promised_term
        if self.server is None or not (
            same or (now >= self._promise_ends and term > self._promised_term)
        ):
            return None
        self._promised_to, self._promised_term, self._promise_ends = of, term, now + PROMISE
        version = self._voters.version if self._voters is not None else 0
        return {"do": "echo", "tick": message["tick"], "version": version}

    # ------------------------------------------------------------ so that others find it

    async def stay_reachable(self) -> None:
        """Listens at the endpoint as soon as it can; if it hosts, informs other hosts."""
        while self.server is not None:
            await asyncio.sleep(TICK)
            self._listen_at_endpoint()
            if self.hosts:
                elsewhere = self._former - {self.server.me.where}
                if self._at_endpoint:
                    elsewhere.discard(self._endpoint)
                for one in await asyncio.gather(*(self._ask_for_host(one) for one in elsewhere)):
                    if isinstance(one, HostMoved):
                        self.server.learn_of_host(one.where, one.term)

    def _listen_at_endpoint(self) -> bool:
        if self._at_endpoint or self.server is None:
            return False
        if self._endpoint_here is None:
            return False
        try:
            self.server.listen_at(listen(self._endpoint_here, self._port))
        except OSError:  # another process listens there
            return False
        self._at_endpoint = True
        return True


def listening_address(host: str, port: int) -> str | None:
    """Where to listen so that others reach us as ``host``.

    Returns:
        The address if ``host`` is one of this machine, or a name for the loopback; "" (all) if it
        is another name of this machine; None if it is none of ours.

    Raises:
        SeveralMachines: it is a name of other machines as well.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    addresses = {str(address[0]): family for family, _, _, _, address in found}
    ours = [ip for ip, family in addresses.items() if _is_ours(ip, family)]
    if not ours:
        return None
    away = [ip for ip in addresses if ip not in ours and _leads_away(ip, addresses[ip])]
    if away:
        raise SeveralMachines(
            f"{host} stands for this machine ({ours[0]}) and for others ({', '.join(away)}): "
            "each of them would host a store of its own; name one machine"
        )
    ip = ours[0]
    alone = ip == host and ip not in ("0.0.0.0", "::")
    return ip if alone or ip == "::1" or ip.startswith("127.") else ""


def _is_ours(ip: str, family: int) -> bool:
    """Whether an address is one of this machine: only these can be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:  # without IPv6 there is none
            trial.bind((ip, 0))
    except OSError:
        return False
    return True


def _leads_away(ip: str, family: int) -> bool:
    """Whether there is a route to an address: none to one of IPv6 if we have only IPv4.

    Connecting a datagram socket sends nothing.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.connect((ip, 9))
            return str(trial.getsockname()[0]) not in ("127.0.0.1", "::1")
    except OSError:
        return False
