"""All TCP connections of this process, of any library: found, and changed without taking them.

gloo, NCCL and torch's stores do not show their sockets. Linux only (``/proc``). The C library is
called directly: where the script has set a default time-out, a socket object of Python's would make
the socket non-blocking under its owner's hands.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_LIBC = ctypes.CDLL(None, use_errno=True)
# Space for an address of any family (``struct sockaddr_storage``), in bytes.
_LONGEST_ADDRESS = 128


class TcpConnection(NamedTuple):
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
        """Whether one of its ends is a listening address.

        Args:
            listeners: what each of these says of itself; in it is its address as the system has
                it (``struct sockaddr``).
        """
        ends = (_as_system(self.here, self.from_port), _as_system(self.host, self.port))
        return any(end in listener for listener in listeners for end in ends)

    def set(self, level: int, option: int, value: int) -> None:
        """Sets an option, as ``socket.setsockopt`` does.

        Raises:
            OSError: it is gone, or the system does not know the option.
        """
        self._check()
        number = ctypes.c_int(value)
        _done(_LIBC.setsockopt(self.fd, level, option, ctypes.byref(number), ctypes.sizeof(number)))

    def shut(self, how: int) -> None:
        """Ends a side of it, if it is still there."""
        with suppress(OSError):
            self._check()
            _done(_LIBC.shutdown(self.fd, how))

    def _check(self) -> None:
        if os.fstat(self.fd).st_ino != self.inode:
            raise OSError("the descriptor is another socket's by now")


def connections() -> set[TcpConnection]:
    """All connected TCP sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            fd = int(name)
            peer, here = _end(_LIBC.getpeername, fd), _end(_LIBC.getsockname, fd)
            if peer is not None and here is not None:
                found.add(TcpConnection(fd, os.fstat(fd).st_ino, *here, *peer))
    return found


def _end(ask: Callable[..., int], fd: int) -> tuple[str, int] | None:
    """Address and port of one end of a socket; None if it is none of IP.

    Raises:
        OSError: it is not connected, or gone.
    """
    said = ctypes.create_string_buffer(_LONGEST_ADDRESS)
    _done(ask(fd, said, ctypes.byref(ctypes.c_uint(_LONGEST_ADDRESS))))
    family, port = *struct.unpack_from("=H", said), *struct.unpack_from("!H", said, 2)
    if family == socket.AF_INET:
        return socket.inet_ntop(family, said.raw[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, said.raw[8:24]), port
    return None


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _as_system(host: str, port: int) -> bytes:
    """An address and port as in C, up to the address; of IPv6 without a flow."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    flow = b"" if family == socket.AF_INET else bytes(4)
    address = socket.inet_pton(family, host)
    return struct.pack("=H", family) + struct.pack("!H", port) + flow + address
