"""A listener that keeps what it hears, and lets a test wait for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.rendezvous.store_contract import Changed, StoreEntry, StoreEvent, StoreSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0
_T = TypeVar("_T")
_E = TypeVar("_E", bound=StoreEvent)


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

    def until(self, wanted: Callable[[], _T], what: str) -> _T:
        """Waits until ``wanted()`` is true, and returns that."""
        with self._news:
            found = self._news.wait_for(wanted, PATIENCE)
            assert found, f"not heard in {PATIENCE} s: {what}; heard {self.events[-20:]}"
            return found

    def has(self, key: str, value: bytes | None = None) -> None:
        """Waits until the key is known (with this value)."""
        self.until(
            lambda: key in self.known and value in (None, self.known[key].value), f"{key}={value!r}"
        )

    def lacks(self, key: str) -> None:
        """Waits until the key is known to be gone."""
        self.until(lambda: key not in self.known, f"no {key}")

    def hears(self, kind: type[_E], since: int = 0, **fields: object) -> _E:
        """Waits for an event of a kind, with these fields, at or after a place in ``events``."""

        def found() -> _E | None:
            for event in self.events[since:]:
                if isinstance(event, kind):
                    if all(getattr(event, name) == value for name, value in fields.items()):
                        return event
            return None

        event = self.until(found, f"{kind.__name__} {fields or ''}")
        assert event is not None
        return event

    def count(self, kind: type[StoreEvent]) -> int:
        """How many events of a kind were heard."""
        return sum(isinstance(event, kind) for event in self.events)

    def last_snapshot(self) -> StoreSnapshot:
        """The last snapshot."""
        return [event for event in self.events if isinstance(event, StoreSnapshot)][-1]

    def was_forgotten(self) -> bool:
        """Whether the store has said that it lost its memory."""
        return any(isinstance(event, StoreSnapshot) and event.forgot for event in self.events)
