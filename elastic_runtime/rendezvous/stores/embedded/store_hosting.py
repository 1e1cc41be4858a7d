"""Finding the host of an embedded store, or becoming it.

A node that may host listens from its start (``store_server``) and is a voter. It looks for the host
where it was last, at the voters and at the endpoint, all at once. If nobody hosts, the first voter
that answers stands for it, and the others wait there (``host_succession``). A host that is not at
the endpoint looks there every second, and where hosts were before, and tells whoever hosts there of
itself; whoever is on the endpoint's machine listens there as soon as it can, to send newcomers on.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from elastic_runtime.defaults import STORE_ANSWER
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.host_succession import PACE, PROMISE, WITNESS
from elastic_runtime.rendezvous.stores.embedded.store_connection import Line, Moved, Unanswered
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system.listening import listen, where_reached

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.stores.embedded.host_succession import Voters
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

# Seconds: that an election may take; without a word from another node; in which the founder of a
# store serves nobody, if one may live on another machine: its host looks here every second; after
# which a store that was founded anew is better than none.
_PATIENCE = 30.0
_ELECTION = 3.0
_LOOK = 2.0
_WAIT = 1.5


class SeveralMachines(ValueError):
    """A name that stands for several machines is no place where one store can be."""


class Hosting:
    """Where the store is, as one node knows; and the store itself, while it is here.

    Everything but the making and ``close`` runs on the loop's thread.

    Args:
        endpoint: where it is, or is to be.
        address: where others reach this node; "": on loopback, or as the way to the endpoint is.

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
        self._dead: set[str] = set()  # where nobody listens any more
        # To whom this voter has promised its vote last, of which term, and until when.
        self._promised, self._obeyed, self._until = "", 0, 0.0
        # When it sent what its host has answered last; until when it need not count the dead.
        self._answered = self._witness = float("-inf")
        self._lost_at = float("inf")

    def no(self, why: str) -> str:
        """That the store does not answer, for people."""
        where = self._known or self._endpoint
        return f"the c10d store at {where} does not answer: {why}{self._hint}"

    def answered(self, sent: float) -> None:
        """The host has answered what was sent at this moment (monotonic)."""
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
        self.server = StoreServer(listener, f"{shown}:{port}", founds=False)

    def close(self) -> None:
        """Ends the store, if it is here."""
        if self.server is not None:
            self.server.close()

    # ------------------------------------------------------------ finding it

    async def connect(self, hello: Message) -> Line:
        """Connects to the host; founds the store, or stands for host, if it is this node's turn.

        Raises:
            NotOurs: the host will never take us.
            StoreUnavailable: nobody hosts, as far as is seen.
        """
        self._lost_at = min(self._lost_at, time.monotonic())
        hello = {**hello, "term": max(self._term, self._obeyed), "host": "", "voter": None}
        if self.server is not None:
            hello["voter"] = list(self.server.me)
        if self._voters is not None:
            hello["voters"] = wire.of_voters(self._voters)
        silent: set[str] = set()
        try:
            line = await self._look_everywhere(hello, silent)
        except Unanswered as error:
            if self._is_next(silent):
                line = await self._run_for_host(hello)
            elif self._founds():
                line = await self._go_to(self._endpoint, hello, STORE_ANSWER)
            else:
                raise Unanswered(f"{error}{self._hint}", error.refused) from None
        self._arrived(line)
        return line

    async def _look_everywhere(self, hello: Message, silent: set[str]) -> Line:
        """Asks wherever the host may be, at once, and goes where the last one is."""
        others = [one.where for one in self._voters.now] if self._voters is not None else []
        places = list(dict.fromkeys([self._known or self._endpoint, *others, self._endpoint]))
        if len(places) == 1:
            try:
                return await self._go_to(places[0], hello, STORE_ANSWER)
            except Moved as moved:
                if not moved.where:
                    raise Unanswered(str(moved)) from None
                return await self._go_to(moved.where, hello, _LOOK)
        me = self.server.me.where if self.server is not None else ""
        answers: list[Moved | str] = []
        tries = [asyncio.ensure_future(self._ask(one)) for one in places if one != me]
        try:
            for each in asyncio.as_completed(tries):
                answers.append(answer := await each)
                if isinstance(answer, Moved) and answer.where and answer.term > self._term:
                    break  # whoever is silent knows nothing newer
        finally:
            for one in tries:
                one.cancel()
        silent.update(one for one in answers if isinstance(one, str))
        hosts = {(one.term, one.where) for one in answers if isinstance(one, Moved)}
        for term, where in sorted(hosts, reverse=True):
            old = term < self._term and time.monotonic() < self._lost_at + _PATIENCE
            if where and not old and where not in self._dead | silent:
                return await self._go_to(where, hello, _LOOK)
        raise Unanswered(self.no("nobody hosts it at the moment"), refused=True)

    async def _ask(self, where: str) -> Moved | str:
        """Asks who hosts, and tells of the host that is here.

        Returns:
            The answer; where nobody answers, "" if nobody listens there either.
        """
        mine = self.server.me.where if self.server is not None and self.hosts else ""
        term = self.server.term if self.server is not None else 0
        hello = {"protocol": wire.PROTOCOL, "asks": True, "term": term, "host": mine}
        try:
            (await Line.open(where, hello, _LOOK)).close()
        except Moved as moved:
            self._dead.discard(where)
            return moved
        except Unanswered as error:
            if not error.refused:
                return where
            self._refused(where)
        return ""

    def _refused(self, where: str) -> None:
        """Nobody listens there, so who did is dead."""
        self._dead.add(where)
        now = time.monotonic()
        if where == self._known and now < self._answered + PROMISE:
            # To whom this voter has promised is dead, and had not dropped it from its list before.
            self._until, self._witness = 0.0, now + WITNESS
            self._answered = float("-inf")

    async def _go_to(self, where: str, hello: Message, limit: float) -> Line:
        """Connects to a host, or to one who stands for it, and waits for the election.

        Raises:
            Unanswered: nobody answers there, or nobody of the present store.
        """
        try:
            line = await Line.open(where, hello, limit, self._ticked)
        except Unanswered as error:
            if error.refused:
                self._refused(where)
            raise
        self._dead.discard(where)
        return line

    def _arrived(self, line: Line) -> None:
        self._former.add(self._known or self._endpoint)
        self._known, self._term, self._lost_at = line.host, line.term, float("inf")
        if self.server is not None and self.server.me.where != line.host:
            self.server.follow(line.host, line.term)

    # ------------------------------------------------------------ becoming it

    def _founds(self) -> bool:
        """Whether it is this node that begins: nobody listens at the endpoint, and it can.

        Nor does anybody listen who may know more: a host is lost with all voters that it had.
        """
        voters = self._voters.now if self._voters is not None else ()
        places = {self._endpoint, *(one.where for one in voters)}
        if self.server is None or not self._dead.issuperset(places - {self.server.me.where}):
            return False
        if not (self._at_endpoint or self._listen_at_endpoint()):
            return False
        self.server.found(max(self._term, self._obeyed) + 1, 0.0 if self._alone else _WAIT)
        return True

    @property
    def _alone(self) -> bool:
        """Whether no other machine takes part, so that nothing is ever cut off."""
        return self.server is not None and self.server.me.where.startswith(("127.", "[::1]"))

    def _is_next(self, silent: set[str]) -> bool:
        if self._voters is None or self.server is None:
            return False
        me = self.server.me
        gone = self._dead | silent
        return next((one for one in self._voters.now if one.where not in gone), None) == me

    async def _run_for_host(self, hello: Message) -> Line:
        assert self.server is not None and self._voters is not None
        left = _ELECTION if self._alone else self._witness - time.monotonic()
        dead = {one.id for one in self._voters.now if one.where in self._dead and left > 0}
        self.server.stand(self._voters, dead, max(self._term, self._obeyed) + 1)
        try:
            async with asyncio.timeout(left if dead else _ELECTION):
                return await self._go_to(self.server.me.where, hello, _LOOK)
        except TimeoutError:
            raise Unanswered(self.no("too few nodes agree on the next host")) from None
        finally:
            if not self.hosts:
                self.server.follow("", self._term)

    def _ticked(self, message: Message) -> Message | None:
        """Answers a tick with a promise, if this node is free to give one."""
        of, now = wire.field(message, "of", str), time.monotonic()
        term = wire.field(message, "term", int)
        if (given := message.get("voters")) is not None:
            voters = wire.to_voters(given)
            known = self._voters.version if self._voters is not None else 0
            if self.server is None or of == self._promised or voters.version > known:
                self._voters = voters
        same = of == self._promised and term >= self._obeyed
        if self.server is None or not (same or (now >= self._until and term > self._obeyed)):
            return None
        self._promised, self._obeyed, self._until = of, term, now + PROMISE
        version = self._voters.version if self._voters is not None else 0
        return {"do": "echo", "tick": message["tick"], "version": version}

    # ------------------------------------------------------------ so that others find it

    async def keep_in_sight(self) -> None:
        """Is at the endpoint as soon as it can be, and tells other hosts of this one."""
        while self.server is not None:
            await asyncio.sleep(PACE)
            self._listen_at_endpoint()
            if self.hosts:
                elsewhere = self._former - {self.server.me.where}
                if self._at_endpoint:
                    elsewhere.discard(self._endpoint)
                for one in await asyncio.gather(*(self._ask(one) for one in elsewhere)):
                    if isinstance(one, Moved):
                        self.server.hear_of(one.where, one.term)

    def _listen_at_endpoint(self) -> bool:
        if self._at_endpoint or self.server is None:
            return False
        if self._endpoint_here is None:
            return False
        try:
            self.server.listen_at(listen(self._endpoint_here, self._port))
        except OSError:  # somebody does
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
    """Only an address of this machine can be bound; names and look-ups tell less surely."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:  # without IPv6 there is none
            trial.bind((ip, 0))
    except OSError:
        return False
    return True


def _leads_away(ip: str, family: int) -> bool:
    """Whether there is a way to an address; a datagram socket that is connected sends nothing.

    A name may have an address of IPv6 also where machines have none.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.connect((ip, 9))
            return str(trial.getsockname()[0]) not in ("127.0.0.1", "::1")
    except OSError:
        return False
