"""Where other nodes reach this one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint

_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


def own_address(configured: str, endpoint: Endpoint) -> str:
    """The address under which other nodes reach this one.

    Args:
        configured: what the user said; used if not empty.
        endpoint: the store. The way to it is, with all likelihood, the way to the other nodes.
    """
    if configured:
        return configured
    host = endpoint.hosts[0].rpartition(":")[0].strip("[]")
    if not host or host.startswith(_LOOPBACK):
        return "127.0.0.1"
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # picks a source address; sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()
