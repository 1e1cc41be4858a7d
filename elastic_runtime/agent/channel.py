"""The agent's end of the workers' channel: a Unix socket that each worker may call.

One thread accepts, reads lines and hands messages on. Nothing that a worker sends is executed,
and a worker that sends nonsense is hung up on.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

from elastic_runtime import threads
from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.messages import MAX_LINE, Hello, Message, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


# How long callers wait where there are too many open files, in seconds.
_DEAF_SECONDS = 0.2


class _Caller:
    """One connected worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.life = 0


class Channel:
    """Listens for the workers of this node.

    Args:
        path: where the socket is made; its folder must be private to the user.
        notify: called with ``(life, message)`` from the channel's thread; see ``Hello.life``.
    """

    def __init__(self, path: str, notify: Callable[[int, Message], None]) -> None:
        self.path = path
        self._notify = notify
        self._callers: dict[int, _Caller] = {}
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._deaf_until = 0.0  # for want of descriptors, on the monotonic clock; 0: it listens
        self._thread = threads.spawn(self._serve, name="channel")

    def tell(self, lives: Collection[int], message: Message) -> int:
        """Sends a message to workers, as far as they are connected.

        Args:
            lives: which ones.
            message: the message.

        Returns:
            How many were told.
        """
        line = message.encode()
        told = 0
        with self._lock:
            callers = [c for c in self._callers.values() if c.life in lives]
        for caller in callers:
            try:
                caller.connection.sendall(line)
            except OSError:
                continue  # it is ending; its exit says the rest
            told += 1
        return told

    def close(self) -> None:
        """Hangs up on everybody."""
        os.write(self._wake_write, b"x")
        self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._listen_again()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == self._wake_read:
                    self._end()
                    return
                else:
                    self._read(self._callers[key.fd])

    def _listen_again(self) -> float | None:
        """Seconds until callers are to be let in again; None: they are."""
        if not self._deaf_until:
            return None
        left = self._deaf_until - time.monotonic()
        if left > 0:
            return left
        self._deaf_until = 0.0
        self._selector.register(self._listener, selectors.EVENT_READ)
        return None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # The caller waits in the queue, and would wake this thread again at once.
            self._selector.unregister(self._listener)
            self._deaf_until = time.monotonic() + _DEAF_SECONDS
            return
        connection.settimeout(5.0)
        with self._lock:
            self._callers[connection.fileno()] = _Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)

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
            self._hang_up(caller)

    def _take(self, caller: _Caller, message: Message) -> None:
        if isinstance(message, Hello):
            caller.life = message.life
        self._notify(caller.life, message)

    def _hang_up(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        with self._lock:
            self._callers.pop(caller.connection.fileno(), None)
        caller.connection.close()

    def _end(self) -> None:
        for caller in list(self._callers.values()):
            self._hang_up(caller)
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
