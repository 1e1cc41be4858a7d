"""Where this process listens for others."""

from __future__ import annotations

import socket

# A fault makes many nodes connect at once; a full backlog would look like a death.
_BACKLOG = 1024


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
        (address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
    )
