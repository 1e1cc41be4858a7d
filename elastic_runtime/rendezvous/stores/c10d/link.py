"""A connection to a TCPStore whose calls end in time, and the hosting of such a store.

torch's client waits for an answer without any limit: while the host is stopped, or its machine is
gone, a call never returns (and neither does a constructor). So one thread of this process looks
after all links and shuts down the socket under a call that is overdue; the call then fails at
once. torch does not tell which descriptor is its socket: it is the one that appeared while the
client was made and whose peer has the store's port.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import stat
import threading
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from torch.distributed import DistStoreError, TCPStore

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.system import threads
from elastic_runtime.system.listening import listen
from elastic_runtime.system.torch_private import greet_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

_T = TypeVar("_T")

# Seconds that an answer may take. torch asks for the name of whom it connects to, which takes 5 s
# where a resolver drops the query: that is slow, not dead.
ANSWER = 6.0

# Seconds that a read waits for a key that another node is about to write.
HOLE = 0.5

_FOREVER = timedelta(days=365)

# How long a call that was cut takes to notice (seconds).
_SOON = 0.1

# The guard's step (seconds), and what it takes for "this process was stopped meanwhile".
_STEP = 0.25
_STOPPED = 1.0

_Address = tuple[Any, ...]

# The local addresses of sockets that surely belong to one link. Links that are made at the same
# moment cannot tell whose is whose; then one that is cut takes the others along, which is harmless:
# their host does not answer either.
_claimed: set[_Address] = set()
_claiming = threading.Lock()


class NotThere(Exception):
    """A key that was waited for has not appeared in time; the connection is fine."""


class Link:
    """One connection. Thread-safe: calls of several threads wait for each other.

    Each call raises ``StoreUnavailable`` if there is no answer; the link is of no more use then.

    Args:
        host: name or address of the store's host.
        port: its port.
        limit: seconds that connecting may take.
        kept: calls will go through the link; if not, it is to be released at once.

    Raises:
        StoreUnavailable: nobody listens there, or whoever does is no TCPStore.
    """

    def __init__(self, host: str, port: int, limit: float = ANSWER, *, kept: bool = True) -> None:
        self._port = port
        self._where = f"{host}:{port}"
        self._lock = threading.Lock()
        self._overdue_at: float | None = None
        self._cut = False
        self._addresses: frozenset[_Address] = frozenset()
        self._before: Collection[int] = ()
        self._connecting = True
        self._client: TCPStore | None = None
        try:
            self._open(host, limit)
            if kept:
                self._claim()
        except TimeoutError:
            raise StoreUnavailable(self._no(f"no answer within {limit:g} s")) from None
        except OSError as error:
            raise StoreUnavailable(self._no(error.strerror or str(error))) from None
        self._connecting = False

    def _open(self, host: str, limit: float) -> None:
        # torch tries a refused port again and again, and prints each time; at one that says nothing
        # it cannot be interrupted: ask first.
        greet_store(host, self._port, limit)
        self._before = _open_sockets().keys()
        _guard(self)
        with self._lock:
            if self._cut:
                raise StoreUnavailable(self._no("this process ends"))
            self._client = self._in_time(lambda: _connect(host, self._port, limit), limit)

    def _claim(self) -> None:
        """Finds out which socket is ours, so that a call on it can be cut."""
        with _claiming:
            new = self._addresses_of_sockets()
            self._addresses = frozenset(new - _claimed) or frozenset(new)
            if len(self._addresses) == 1:
                _claimed.update(self._addresses)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, which begins at 0.

        Returns:
            The new count.
        """
        return int(self._call(lambda store: store.add(key, amount)))

    def swap(self, key: str, old: bytes, new: bytes) -> bytes:
        """Writes if the key has this value; an absent key has the value ``b""``, and gets it.

        Returns:
            The value that the key has now.
        """
        return bytes(self._call(lambda store: store.compare_set(key, old, new)))

    def peek(self, key: str) -> bytes:
        """The value of a key, ``b""`` if it is absent; never waits for it."""
        return self.swap(key, b"", b"")

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys that exist or are about to.

        Raises:
            NotThere: one of them did not appear in time.
        """
        return [bytes(value) for value in self._call(lambda store: store.multi_get(keys))]

    def wait(self, key: str) -> None:
        """Waits until a key exists, for as long as it takes."""
        # torch prints two lines whenever a wait runs out.
        self._call(lambda store: store.wait([key], _FOREVER), _FOREVER.total_seconds())

    def keys(self) -> list[str]:
        """All keys that exist."""
        return [str(key) for key in self._call(lambda store: store.list_keys())]

    def delete(self, key: str) -> None:
        """Removes a key."""
        self._call(lambda store: store.delete_key(key))

    def release(self) -> TCPStore:
        """Gives the client out, to be used without this link."""
        with self._lock:
            client, self._client, self._cut = self._client, None, True
        assert client is not None
        return client

    def _call(self, ask: Callable[[Any], _T], patience: float = HOLE) -> _T:
        with self._lock:
            if self._cut:
                raise StoreUnavailable(self._no("the connection is closed"))
            client = self._client
            return self._in_time(lambda: ask(client), ANSWER + patience)

    def cut(self) -> None:
        """Ends the connection; a call in progress fails at once."""
        again, self._cut = self._cut, True
        if self._lock.acquire(blocking=False):
            self._client, self._overdue_at = None, None
            self._lock.release()
            with _claiming:
                _claimed.difference_update(self._addresses)
        else:
            self._overdue_at = time.monotonic() + _STOPPED  # then the guard sees if it helped
            self._shut_down(certain=not again)

    def idle(self, within: float) -> bool:
        """Whether no call is in progress, or the last one ends within so many seconds."""
        if not self._lock.acquire(timeout=within):
            return False
        self._lock.release()
        return True

    def _shut_down(self, certain: bool) -> None:
        """Shuts down our socket; if that has not helped, all to the same port."""
        if not self._connecting:
            self._before = ()
        for found, address in self._sockets():
            with found, contextlib.suppress(OSError):  # closed by the peer already
                if address in self._addresses or self._connecting or not certain:
                    found.shutdown(socket.SHUT_RDWR)

    def _addresses_of_sockets(self) -> set[_Address]:
        addresses = set()
        for found, address in self._sockets():
            found.close()
            addresses.add(address)
        return addresses

    def _in_time(self, ask: Callable[[], _T], limit: float) -> _T:
        self._overdue_at = time.monotonic() + limit
        try:
            return ask()
        except DistStoreError as error:
            raise NotThere(str(error)) from None
        except RuntimeError as error:  # torch's own errors all are
            overdue, self._cut = self._cut, True
            why = f"no answer within {limit:g} s" if overdue else str(error).splitlines()[0]
            raise StoreUnavailable(self._no(why)) from None
        finally:
            self._overdue_at = None

    def _sockets(self) -> Iterator[tuple[socket.socket, _Address]]:
        """The sockets to the store's port that were not there before."""
        for inode, number in _open_sockets().items():
            if inode in self._before:
                continue
            try:
                copy = os.dup(number)
            except OSError:  # closed meanwhile
                continue
            try:
                found = socket.socket(fileno=copy)
            except OSError:  # another file took its number
                os.close(copy)
                continue
            try:
                if found.getpeername()[1] == self._port:
                    yield found, found.getsockname()
                    continue
            except (OSError, IndexError):  # not connected, or of another family
                pass
            found.close()

    def _no(self, why: str) -> str:
        return f"the c10d store at {self._where} does not answer: {why}"


def _open_sockets() -> dict[int, int]:
    """The sockets of this process: inode and descriptor. (Descriptors are used again at once.)"""
    found: dict[int, int] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(number)
        except OSError:  # closed meanwhile
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = number
    return found


def _connect(host: str, port: int, limit: float) -> TCPStore:
    client = TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=limit)
    )
    client.set_timeout(timedelta(seconds=HOLE))
    return client


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_ending = False


@atexit.register
def _cut_all() -> None:
    """Ends all calls: a thread that comes back from one while the interpreter ends aborts it."""
    global _ending
    with _guarding:
        _ending = True  # a link that is made from now on is cut before its first call
        links = list(_links)
    for link in links:
        link.cut()
    # torch, while it connects, tries again on further sockets until its time is over, and the last
    # try may take as long once more.
    until = time.monotonic() + 2 * ANSWER
    for link in links:
        while not link.idle(_SOON) and time.monotonic() < until:
            link.cut()


_guarding = threading.Lock()
_guard_thread: threading.Thread | None = None


def _guard(link: Link) -> None:
    global _guard_thread
    with _guarding:
        _links.add(link)
        link._cut |= _ending
        if _guard_thread is None or not _guard_thread.is_alive():
            _guard_thread = threads.spawn(_keep_guard, name="c10d-guard")


def _keep_guard() -> None:
    step = threading.Event()
    seen = amnesty = time.monotonic()
    while True:
        step.wait(_STEP)
        now = time.monotonic()
        if now - seen > _STOPPED:  # the answers may be there already: let the calls look
            amnesty = now + _STOPPED
        seen = now
        with _guarding:
            links = list(_links)
        for link in links:
            overdue_at = link._overdue_at
            if overdue_at is not None and now > max(overdue_at, amnesty):
                link.cut()


# ---------------------------------------------------------------- hosting


class HostedStore:
    """A TCPStore that lives as long as this object does.

    Args:
        host: the address to listen at; "" for all.
        port: the port; 0 for a free one.

    Raises:
        OSError: the port is taken, or the address is not of this machine.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        # torch would listen at all addresses, and print when the port is taken: listen ourselves.
        listener = listen(host, port)
        self.port: int = listener.getsockname()[1]
        self._store = TCPStore(
            host or "localhost",
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=ANSWER),
            master_listen_fd=listener.detach(),
        )


def host_store(host: str = "127.0.0.1", port: int = 0) -> HostedStore:
    """Hosts a TCPStore in this process; see ``HostedStore``."""
    return HostedStore(host, port)


def listening_address(host: str, port: int) -> str | None:
    """Where to listen so that others reach us as ``host``.

    Returns:
        The address if ``host`` is one of this machine, or a name for the loopback; "" (all) if it
        is another name of this machine; None if it is none of ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, _, _, address in found:
        # Only an address of this machine can be bound; names and look-ups tell less surely.
        try:
            with socket.socket(family, kind) as trial:  # without IPv6 there is none of its kind
                trial.bind((address[0], 0))
        except OSError:
            continue
        ip = str(address[0])
        alone = ip == host and ip not in ("0.0.0.0", "::")
        return ip if alone or ip == "::1" or ip.startswith("127.") else ""
    return None
