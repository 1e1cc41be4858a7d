"""The counters of a ``State``: plain values that move with its steps."""

from __future__ import annotations

from typing import Any


class CountersEntry:
    """The counters of a State, as a checkpoint takes and gives them."""

    def __init__(self, counters: dict[str, Any]) -> None:
        """Refers to these counters: which ones there are may change."""
        self._counters = counters

    def state_dict(self) -> dict[str, Any]:
        """All of them, as they are now."""
        return dict(self._counters)

    def load_state_dict(self, counters: dict[str, Any]) -> None:
        """Replaces all of them."""
        self._counters.clear()
        self._counters.update(counters)
