"""Says what a start waits for, where it takes long: a person has nothing else to look at."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from elastic_runtime.events import Emit

# After so many seconds it is said for the first time, and each next time after so many times more.
_FIRST = 5.0
_FACTOR = 3.0


class Starting:
    """A part of the start of a node; as a context, or from ``begin`` to ``end``.

    Args:
        emit: takes ``start.slow`` when the part takes long, and again each time when it has taken
            three times as long.
        doing: what is done, for people.
        first: after how many seconds it is said first.
    """

    def __init__(self, emit: Emit, doing: str, first: float = _FIRST) -> None:
        self._emit = emit
        self._doing = doing
        self._first = first
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """The part begins."""
        with self._lock:
            self._arm(time.monotonic(), self._first)

    def end(self) -> None:
        """The part is over; nothing is said from here on."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def _arm(self, begun: float, patience: float) -> None:
        pause = max(0.0, begun + patience - time.monotonic())
        self._timer = threading.Timer(pause, self._say, (begun, patience))
        self._timer.daemon = True
        self._timer.start()

    def _say(self, begun: float, patience: float) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                seconds = round(time.monotonic() - begun)
                self._emit("start.slow", doing=self._doing, seconds=seconds)
                self._arm(begun, _FACTOR * patience)
