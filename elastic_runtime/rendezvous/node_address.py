"""Where other nodes reach this one."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import TYPE_CHECKING

from elastic_runtime.config import LOOPBACK

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint

_LOOPBACK = ("127.", "localhost", "[::1]", "::1")
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = "/proc/net/if_inet6"


def own_address(configured: str, endpoint: Endpoint) -> str:
    """The address under which other nodes reach this one.

    Args:
        configured: what the user said; used if not empty.
        endpoint: the store. The way to it is, with all likelihood, the way to the other nodes.
    """
    if configured:
        return LOOPBACK if configured == "localhost" else configured
    host = endpoint.hosts[0].rpartition(":")[0].strip("[]")
    if not host or host.startswith(_LOOPBACK):
        return LOOPBACK
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # picks a source address; sends nothing
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):  # the second one: it is no name at all
        return socket.getfqdn()


def interface_of(address: str) -> str:
    """The name of the network interface that has an address.

    Args:
        address: an address of this machine, or a name that stands for one.

    Returns:
        The interface's name; "" if there is none, or only one that other machines cannot reach.
    """
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return ""
    addresses = _addresses6() if ":" in str(found) else _addresses4()
    name = addresses.get(str(found), "")
    return "" if name == "lo" else name


def _addresses4() -> dict[str, str]:
    """The interface of each first IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            found[socket.inet_ntoa(answer[20:24])] = name
    return found


def _addresses6() -> dict[str, str]:
    """The interface of each IPv6 address."""
    try:
        with open(_IF_INET6) as lines:
            fields = [line.split() for line in lines]
    except OSError:
        return {}
    return {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(one[0])): one[5] for one in fields}
