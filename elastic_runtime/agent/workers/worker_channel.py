"""The agent's end of the workers' channel: a Unix socket that each worker may call.

One thread accepts, reads lines and hands messages on. Nothing that a worker sends is executed,
and the connection of a worker that sends nonsense is closed.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.messages import MAX_LINE, Hello, Message, decode
from elastic_runtime.protocol.unix_path import address_of
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


# How long callers wait when there are too many open files, in seconds.
_ACCEPT_PAUSE = 0.2


class _Caller:
    """One connected worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.serial = 0


class Channel:
    """Listens for the workers of this node.

    Args:
        path: where the socket is made; its folder must be private to the user.
        notify: called with ``(serial, message)`` from the channel's thread; see ``Hello.life``.
    """

    def __init__(self, path: str, notify: Callable[[int, Message], None]) -> None:
        self.path = path
        self._notify = notify
        self._callers: dict[int, _Caller] = {}
        self._lock = threading.Lock()
        self._listener = _listen(path)
        self._new_listeners: list[socket.socket] = []  # that follow the listener
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._paused_until = 0.0  # no descriptors are free; on the monotonic clock; 0: it accepts
        self._thread = threads.spawn(self._serve, name="channel")

    def renew(self) -> None:
        """Listens again if somebody has removed the socket; who is connected stays so.

        Raises:
            OSError: there can be no socket.
        """
        if not os.path.lexists(self.path):
            self._new_listeners.append(_listen(self.path))
            os.write(self._wake_write, b"r")

    def tell(self, serials: Collection[int], message: Message) -> int:
        """Sends a message to workers, as far as they are connected.

        Args:
            serials: which ones.
            message: the message.

        Returns:
            How many of them it was sent to.
        """
        line = message.encode()
        reached = 0
        with self._lock:
            callers = [c for c in self._callers.values() if c.serial in serials]
        for caller in callers:
            try:
                caller.connection.sendall(line)
            except OSError:
                continue  # it is ending; its exit says the rest
            reached += 1
        return reached

    def close(self) -> None:
        """Closes all connections."""
        os.write(self._wake_write, b"x")
        self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._listen_again()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == self._wake_read:
                    if b"x" in os.read(self._wake_read, 64):
                        self._end()
                        return
                    self._replace_listener()
                else:
                    caller = self._callers.get(key.fd)
                    if caller is not None and caller.connection is key.fileobj:
                        self._read(caller)

    def _listen_again(self) -> float | None:
        """Seconds until connections are accepted again; None: they are."""
        if not self._paused_until:
            return None
        left = self._paused_until - time.monotonic()
        if left > 0:
            return left
        self._paused_until = 0.0
        self._selector.register(self._listener, selectors.EVENT_READ)
        return None

    def _replace_listener(self) -> None:
        while self._new_listeners:
            while self._accept():  # who had come before the socket was removed
                pass
            if not self._paused_until:
                self._selector.unregister(self._listener)
            self._paused_until = 0.0
            self._listener.close()
            self._listener = self._new_listeners.pop(0)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError:
            # The caller waits in the queue, and would wake this thread again at once.
            if not self._paused_until:
                self._selector.unregister(self._listener)
            self._paused_until = time.monotonic() + _ACCEPT_PAUSE
            return False
        connection.settimeout(5.0)
        with self._lock:
            self._callers[connection.fileno()] = _Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        return True

    def _read(self, caller: _Caller) -> None:
        try:
            part = caller.connection.recv(65536)
        except OSError:
            part = b""
        caller.buffer += part
        *lines, caller.buffer = caller.buffer.split(b"\n")
        try:
            for line in lines:
                self._take(caller, decode(line))
        except RecordError:
            part = b""
        if not part or len(caller.buffer) > MAX_LINE:
            self._disconnect(caller)

    def _take(self, caller: _Caller, message: Message) -> None:
        if isinstance(message, Hello):
            caller.serial = message.life
        self._notify(caller.serial, message)

    def _disconnect(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        with self._lock:
            self._callers.pop(caller.connection.fileno(), None)
        caller.connection.close()

    def _end(self) -> None:
        for caller in list(self._callers.values()):
            self._disconnect(caller)
        self._selector.close()
        for listener in (self._listener, *self._new_listeners):
            listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        with suppress(OSError):
            os.unlink(self.path)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            listener.bind(address)
        listener.listen(256)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
