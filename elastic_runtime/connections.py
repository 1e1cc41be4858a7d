"""The TCP connections of this process, whoever owns them: found, and changed without taking them.

gloo, NCCL and torch's stores show their sockets to nobody. Linux only (``/proc``).
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class Connection(NamedTuple):
    """A connected TCP socket; the inode tells it from a later one with the same number.

    Attributes:
        fd: the descriptor.
        inode: the socket itself.
        here, from_port: the own address and port.
        host, port: of the peer.
    """

    fd: int
    inode: int
    here: str
    from_port: int
    host: str
    port: int

    def meets(self, listeners: Collection[bytes]) -> bool:
        """Whether one of its ends is where somebody listens.

        Args:
            listeners: what each of these says of itself; in it is its address as the system has
                it (``struct sockaddr``).
        """
        ends = (_as_system(self.here, self.from_port), _as_system(self.host, self.port))
        return any(end in listener for listener in listeners for end in ends)

    @contextmanager
    def borrowed(self) -> Iterator[socket.socket]:
        """The socket, to set options on it or to shut it.

        Raises:
            OSError: it is gone.
        """
        with _borrowed(self.fd) as line:
            if os.fstat(self.fd).st_ino != self.inode:
                raise OSError("the descriptor is another socket's by now")
            yield line

    def shut(self, how: int) -> None:
        """Ends a side of it, if it is still there."""
        with suppress(OSError), self.borrowed() as line:
            line.shutdown(how)


def connections() -> set[Connection]:
    """All connected TCP sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with _borrowed(int(name)) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6):
                    peer, here = line.getpeername(), line.getsockname()
                    inode = os.fstat(line.fileno()).st_ino
                    found.add(Connection(line.fileno(), inode, *here[:2], *peer[:2]))
    return found


def _as_system(host: str, port: int) -> bytes:
    """An address and port as in C, up to the address; of IPv6 without a flow."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    flow = b"" if family == socket.AF_INET else bytes(4)
    address = socket.inet_pton(family, host.partition("%")[0])
    return struct.pack("=H", family) + struct.pack("!H", port) + flow + address


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for what somebody else reads and writes; that one goes on owning it."""
    # If the script has set one, Python would make the socket non-blocking under its owner's hands.
    default = socket.getdefaulttimeout()
    if default is not None:
        socket.setdefaulttimeout(None)
    try:
        line = socket.socket(fileno=fd)
    finally:
        if default is not None:
            socket.setdefaulttimeout(default)
    try:
        yield line
    finally:
        line.detach()
