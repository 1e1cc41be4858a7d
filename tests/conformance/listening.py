"""A listener that keeps what it hears, and lets a test wait for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from elastic_runtime.rendezvous.store_contract import Changed, StoreEntry, StoreEvent, StoreSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0


class Ear:
    """Hears one store; ``known`` is what follows from all events so far."""

    def __init__(self) -> None:
        self.events: list[StoreEvent] = []
        self.known: dict[str, StoreEntry] = {}
        self._news = threading.Condition()

    def __call__(self, event: StoreEvent) -> None:
        with self._news:
            if isinstance(event, StoreSnapshot):
                self.known = {entry.key: entry for entry in event.entries}
            elif isinstance(event, Changed):
                for key in event.deletes:
                    self.known.pop(key, None)
                self.known |= {entry.key: entry for entry in event.puts}
            self.events.append(event)
            self._news.notify_all()

    def until(self, wanted: Callable[[], object], what: str, patience: float = PATIENCE) -> float:
        """Waits until ``wanted()`` is true; returns when, on the monotonic clock."""
        with self._news:
            if not self._news.wait_for(wanted, patience):
                raise AssertionError(f"not heard in {patience} s: {what}; heard {self.events}")
            return time.monotonic()

    def has(self, key: str, value: bytes | None = None) -> float:
        """Waits until the key is known (with this value)."""
        return self.until(
            lambda: key in self.known and value in (None, self.known[key].value), f"{key}={value!r}"
        )

    def lacks(self, key: str) -> float:
        """Waits until the key is known to be gone."""
        return self.until(lambda: key not in self.known, f"no {key}")

    def hears(self, kind: type[StoreEvent], count: int = 1, patience: float = PATIENCE) -> float:
        """Waits until that many events of a kind were heard."""
        return self.until(lambda: self.count(kind) >= count, f"{count} {kind.__name__}", patience)

    def count(self, kind: type[StoreEvent]) -> int:
        """How many events of a kind were heard."""
        return sum(isinstance(event, kind) for event in self.events)

    def last_snapshot(self) -> StoreSnapshot:
        """The last snapshot."""
        return [event for event in self.events if isinstance(event, StoreSnapshot)][-1]

    def was_forgotten(self) -> bool:
        """Whether the store has said that it lost its memory."""
        return any(isinstance(event, StoreSnapshot) and event.forgot for event in self.events)
