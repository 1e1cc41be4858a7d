"""A node on an etcd, whose store can be started later than it is written to."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.store_contract import Changed, StoreSnapshot
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from tests.conformance.listening import PATIENCE, Ear
from tests.conformance.store_contract import Node
from tests.etcd_server import etcdctl

if TYPE_CHECKING:
    from collections.abc import Callable


def endpoint(hosts: str, **settings: Any) -> Endpoint:
    """An etcd endpoint out of ``"host:port,host:port"``."""
    return Endpoint("etcd", tuple(hosts.split(",")), prefix="test", **settings)


def allow(hosts: str, account: str, right: str, prefix: str) -> None:
    """Has an etcd ask for passwords, and gives a user (``name:password``) one right."""
    etcdctl(hosts, "user", "add", "root:root-pw")
    etcdctl(hosts, "user", "grant-role", "root", "root")
    etcdctl(hosts, "user", "add", account)
    etcdctl(hosts, "role", "add", "trains")
    etcdctl(hosts, "role", "grant-permission", "--prefix=true", "trains", right, prefix)
    etcdctl(hosts, "user", "grant-role", account.partition(":")[0], "trains")
    etcdctl(hosts, "auth", "enable")


class Listening(Node):
    """One node with its store, in a ``with`` statement.

    Args:
        where: the endpoint, or its hosts.
        run_id: the run; "" makes a new one.
        node: the node's name in its key.
        ttl: seconds, the lease.
        connect_timeout: seconds.
    """

    def __init__(
        self,
        where: Endpoint | str,
        run_id: str = "",
        node: str = "",
        ttl: float = 60.0,
        connect_timeout: float = PATIENCE,
    ) -> None:
        self.run_id = run_id or uuid.uuid4().hex
        where = endpoint(where) if isinstance(where, str) else where
        store = EtcdStore(where, self.run_id, ttl, connect_timeout)
        super().__init__(f"nodes/{node or uuid.uuid4().hex}", store, Ear())

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def start(self) -> StoreSnapshot:
        """Starts the store; returns its first snapshot."""
        self.store.start(self.key, self.ear)
        return self.ear.hears(StoreSnapshot)

    def until(self, condition: Callable[[dict[str, bytes]], bool], what: str = "") -> None:
        """Waits until ``condition`` holds for the values as the events tell them."""
        self.ear.until(lambda: condition(self.values()), what or "the condition")

    def values(self) -> dict[str, bytes]:
        """The values of the followed keys, as the events tell them."""
        return {key: entry.value for key, entry in self.ear.known.items()}

    def written(self, key: str, since: int = 0) -> list[bytes]:
        """All values of a key that were heard of in changes, in order."""
        changes = [event for event in self.ear.events[since:] if isinstance(event, Changed)]
        return [entry.value for event in changes for entry in event.puts if entry.key == key]
