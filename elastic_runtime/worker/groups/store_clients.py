"""Clients of the TCPStores that agents host, one each, kept from round to round.

A new connection costs two name look-ups (torch asks for the peer's name), which a resolver
that drops a query makes a matter of seconds; so they are made ahead of the fault.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from elastic_runtime.system import torch_tcp_store
from elastic_runtime.system.tcp_connections import TcpConnection, connections

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# While the ranks connect, no rank waits longer than this for a peer that cannot be reached.
BUILD_TIMEOUT = timedelta(seconds=30)
# How long a first round's store is waited for: it comes with its node's script.
_PATIENCE = timedelta(minutes=30)
# How long to wait for a store that may be needed later.
_AHEAD = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class StoreClient:
    """A client of a TCPStore, and its socket."""

    store: dist.TCPStore
    sockets: frozenset[TcpConnection]


class Stores:
    """The clients, by address."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, int], StoreClient] = {}
        self._lock = threading.Lock()

    def client(self, host: str, port: int, patience: timedelta = _PATIENCE) -> StoreClient:
        """The client of this store, made if there is none.

        Args:
            host, port: where it listens, or will.
            patience: how long to wait for it. In the first round it comes with its node's script,
                which may take minutes to come to ``elastic.run``.

        Raises:
            RuntimeError: there is no such store, and none came.
        """
        with self._lock:
            known = self._clients.get((host, port))
        if known is not None:
            return known
        # torch would print lines that only worry people.
        if not torch_tcp_store.await_listener(host, port, patience.total_seconds()):
            raise RuntimeError(f"no store listens at {host}:{port}, after {patience}")
        before = connections()  # whose a socket is that others make meanwhile, shows in its port
        store = dist.TCPStore(
            host, port, is_master=False, timeout=BUILD_TIMEOUT, wait_for_workers=False
        )
        made = StoreClient(store, frozenset(s for s in connections() - before if s.port == port))
        with self._lock:
            return self._clients.setdefault((host, port), made)

    def connect_ahead(self, places: Sequence[Sequence[Any]]) -> None:
        """Connects, in the background, to the stores that the next rounds are likely to use.

        Args:
            places: host and port of each; one that cannot be reached is tried again when needed.
        """

        def connect() -> None:
            for host, port in places:
                with suppress(RuntimeError):
                    self.client(host, port, _AHEAD)

        threading.Thread(target=connect, name="elastic-ahead", daemon=True).start()

    def keep(self, places: Collection[tuple[str, int]]) -> None:
        """Drops the clients of all other stores: those of nodes that are gone would pile up."""
        with self._lock:
            others = self._clients.keys() - set(places)
        for host, port in others:
            self.forget(host, port)

    def forget(self, host: str, port: int) -> None:
        """Drops a client that may be in the middle of a call, and ends that call."""
        with self._lock:
            known = self._clients.pop((host, port), None)
        for one in known.sockets if known else ():
            one.shut(socket.SHUT_RDWR)
