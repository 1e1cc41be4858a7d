"""Says what a start waits for, where it takes long: a person has nothing else to look at."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from elastic_runtime.events.job_events import StartSlow
from elastic_runtime.limits import SLOW_START, SLOW_START_FACTOR
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from elastic_runtime.events import Emit


class Starting:
    """A part of the start of a node; as a context, or from ``begin`` to ``end``.

    Args:
        emit: takes ``start.slow`` when the part takes long, and again each time when it has taken
            three times as long.
        doing: what is done, for people.
        first: after how many seconds it is said first.
    """

    def __init__(self, emit: Emit, doing: str, first: float = SLOW_START) -> None:
        self._emit = emit
        self._doing = doing
        self._first = first
        self._lock = threading.Lock()
        self._over = threading.Event()

    def begin(self) -> None:
        """The part begins, also where it begins anew before it was over."""
        self.end()
        self._over = threading.Event()
        with suppress(RuntimeError):  # the system allows no thread: then nothing is said
            threads.spawn(self._speak, self._over, time.monotonic(), name="slow-start")

    def end(self) -> None:
        """The part is over; nothing is said from here on."""
        with self._lock:
            self._over.set()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def _speak(self, over: threading.Event, begun: float) -> None:
        patience = self._first
        while not over.wait(max(0.0, begun + patience - time.monotonic())):
            with self._lock:
                if not over.is_set():
                    seconds = round(time.monotonic() - begun)
                    self._emit(StartSlow(self._doing, seconds))
            patience *= SLOW_START_FACTOR
