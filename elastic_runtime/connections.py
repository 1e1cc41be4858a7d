"""The TCP connections of this process, whoever owns them: found, and changed without taking them.

gloo, NCCL and torch's stores show their sockets to nobody. Linux only (``/proc``).
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Connection(NamedTuple):
    """A connected TCP socket; the inode tells it from a later one with the same number.

    Attributes:
        fd: the descriptor.
        inode: the socket itself.
        here: the own address.
        host, port: of the peer.
    """

    fd: int
    inode: int
    here: str
    host: str
    port: int

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
                    peer, here = line.getpeername(), line.getsockname()[0]
                    inode = os.fstat(line.fileno()).st_ino
                    found.add(Connection(line.fileno(), inode, here, *peer[:2]))
    return found


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
