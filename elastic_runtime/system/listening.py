"""Where this process listens for others, and how it stops."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from dataclasses import dataclass

from elastic_runtime.config import LOOPBACK

# A fault makes many nodes connect at once; a full backlog would look like a death.
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Where:
    """Where to listen.

    Attributes:
        address: as for ``listen``; "": at all addresses of this machine.
        why: why at all of them; "" if it is one.
    """

    address: str
    why: str = ""

    @property
    def loopback(self) -> bool:
        """No other machine reaches what listens there."""
        return self.address == "::1" or self.address.startswith("127.")

    def listen(self, port: int = 0) -> socket.socket:
        """A socket that listens there; at all addresses if the machine has lost this one.

        Args:
            port: which; 0: a free one.

        Raises:
            OSError: the port is taken.
        """
        try:
            return listen(self.address, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return listen("", port)


def where_reached(address: str) -> Where:
    """Where to listen to be reached at an address, and at no other one of this machine.

    A name may stand for something else on the other machines than it does here (Debian has the
    own one stand for 127.0.1.1), so it says nothing about where to listen.

    Args:
        address: under which others know this machine: an IP address or a name.
    """
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return Where("", f"{address} is a name, which others may look up in another way")
    try:
        listen(address).close()
    except OSError:  # the machine is behind another one that hands connections on, for one
        return Where("", f"{address} is no address of this machine")
    return Where(address)


def way_to(listener: socket.socket) -> str:
    """The address at which this process itself reaches what listens."""
    address = str(listener.getsockname()[0])
    return LOOPBACK if address in ("0.0.0.0", "::") else address


def listen(address: str = "", port: int = 0) -> socket.socket:
    """A socket that listens.

    Args:
        address: where; ``""``: at all addresses of this machine, those of IPv6 among them where
            it has any: a node is known to others by whichever it has.
        port: which; 0: a free one.

    Raises:
        OSError: the port is taken, or the address is none of this machine's.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    return socket.create_server(
        (address, port), family=family, backlog=BACKLOG, dualstack_ipv6=both
    )


async def stop_listening(server: asyncio.Server) -> None:
    """Closes a server of the running loop; connections that it has accepted stay open.

    ``Server.close`` alone would forget what it has accepted in the same turn of the loop: such a
    client would wait for an answer on a connection that no code holds any longer
    (https://github.com/python/cpython/issues/109564).
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)  # what it has accepted becomes its client in this turn
    server.close()
