"""A TCP proxy that can be cut: the network between a node and its store."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from tests.etcd_server import free_port

if TYPE_CHECKING:
    from typing import Self

_PREFACE, _HEAD = 24, 9
# SETTINGS, PING, WINDOW_UPDATE.
_ABOUT_THE_CONNECTION = (4, 6, 8)


class Proxy:
    """Forwards connections to ``target`` until it is cut; while ``mute``, answers get lost.

    Args:
        target: "host:port".
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._port = free_port()
        self.endpoint = f"127.0.0.1:{self._port}"
        self._guard = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._server: socket.socket | None = None
        self.mute = False
        self.heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def heal(self) -> None:
        """Takes connections again."""
        self.mute = False
        self._server = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        """Ends all connections and takes no more."""
        with self._guard:
            server, self._server = self._server, None
            pairs, self._pairs = self._pairs, []
        for end in [*([server] if server else []), *(end for pair in pairs for end in pair)]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                upstream = socket.create_connection(self._target)
                with self._guard:
                    self._pairs.append((client, upstream))
                for way in ((client, upstream, True), (upstream, client, False)):
                    threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, calls: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if calls or not self.mute:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class DesertedProxy(Proxy):
    """One whose backend may go while its connections stay; for HTTP/2."""

    def __init__(self, target: str) -> None:
        self._deserted: set[socket.socket] = set()
        super().__init__(target)

    def desert(self) -> None:
        """From now on nobody answers calls on the connections that there are.

        They stay open, and pings are answered. Connections that are made later lead somewhere.
        """
        with self._guard:
            self._deserted.update(client for client, _ in self._pairs)

    def _pump(self, source: socket.socket, sink: socket.socket, calls: bool) -> None:
        if not calls:
            return super()._pump(source, sink, calls)
        # Frame by frame; the stream begins with a preface without any.
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            sink.sendall(stream.read(_PREFACE))
            while head := stream.read(_HEAD):
                frame = head + stream.read(int.from_bytes(head[:3]))
                if source not in self._deserted or head[3] in _ABOUT_THE_CONNECTION:
                    sink.sendall(frame)
            sink.shutdown(socket.SHUT_WR)
