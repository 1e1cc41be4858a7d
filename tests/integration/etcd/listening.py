"""A store with its events kept in order, and ways to wait for one."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Expect,
    Put,
    StoreSnapshot,
    Transaction,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.rendezvous.store_contract import StoreEntry, StoreEvent

TIMEOUT = 60.0


def endpoint(hosts: str, **settings: Any) -> Endpoint:
    """An etcd endpoint out of ``"host:port,host:port"``."""
    return Endpoint("etcd", tuple(hosts.split(",")), prefix="test", **settings)


class Listening:
    """One node with its store; everything that it hears is in ``events``.

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
        connect_timeout: float = TIMEOUT,
    ) -> None:
        self.run_id = run_id or uuid.uuid4().hex
        self.key = f"nodes/{node or uuid.uuid4().hex}"
        self.events: list[StoreEvent] = []
        self._came = threading.Condition()
        where = endpoint(where) if isinstance(where, str) else where
        self.store = EtcdStore(where, self.run_id, ttl, connect_timeout)

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def hear(self, event: StoreEvent) -> None:
        """The listener."""
        with self._came:
            self.events.append(event)
            self._came.notify_all()

    def start(self) -> StoreSnapshot:
        """Starts the store; returns its first snapshot."""
        self.store.start(self.key, self.hear)
        return self.next(StoreSnapshot)

    def mark(self) -> int:
        """A place in ``events`` from which ``next`` may look on."""
        with self._came:
            return len(self.events)

    def next(self, kind: type[Any], since: int = 0, **fields: Any) -> Any:
        """The first event of a kind, with these fields, at or after a mark; waits for it."""

        def found() -> list[StoreEvent]:
            return [
                event
                for event in self.events[since:]
                if isinstance(event, kind)
                and all(getattr(event, name) == value for name, value in fields.items())
            ]

        return self._wait(found, f"{kind.__name__} {fields or ''}")[0]

    def until(self, condition: Callable[[dict[str, bytes]], bool], what: str = "") -> None:
        """Waits until ``condition`` holds for the values as the events tell them."""
        self._wait(lambda: condition(self.values()), what or "the condition")

    def _wait(self, found: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + TIMEOUT
        with self._came:
            while not (result := found()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{what} has not come; heard: {self.events[-20:]}")
                self._came.wait(left)
            return result

    def values(self) -> dict[str, bytes]:
        """The values of the followed keys, as the events tell them."""
        return {key: entry.value for key, entry in self.entries().items()}

    def entries(self) -> dict[str, StoreEntry]:
        """The followed entries, as the events tell them."""
        known: dict[str, StoreEntry] = {}
        for event in self.events:
            if isinstance(event, StoreSnapshot):
                known = {entry.key: entry for entry in event.entries}
            elif isinstance(event, Changed):
                for key in event.deletes:
                    known.pop(key, None)
                known.update((entry.key, entry) for entry in event.puts)
        return known

    def written(self, key: str, since: int = 0) -> list[bytes]:
        """All values of a key that were heard of in changes, in order."""
        changes = [event for event in self.events[since:] if isinstance(event, Changed)]
        return [entry.value for event in changes for entry in event.puts if entry.key == key]

    def put(self, key: str, value: bytes, leased: bool = False) -> None:
        """Writes without any condition."""
        assert self.store.apply(Transaction(puts=(Put(key, value, leased),)))

    def create(self, key: str, value: bytes = b"", leased: bool = False) -> bool:
        """Writes if the key does not exist."""
        return self.store.apply(Transaction((Expect(key, ABSENT),), (Put(key, value, leased),)))

    def register(self, value: bytes = b"") -> None:
        """Puts the own key, leased."""
        assert self.create(self.key, value, leased=True)
