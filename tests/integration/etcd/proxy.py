"""A TCP proxy that can be cut: the network between a store and its etcd."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.etcd_server import free_port


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

    def __enter__(self) -> Proxy:
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
                for source, sink in ((client, upstream), (upstream, client)):
                    answers = source is upstream
                    threading.Thread(
                        target=self._pump, args=(source, sink, answers), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not (answers and self.mute):
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
