"""Simulated time: what happens next, in an order that a seed decides."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Violation(AssertionError):
    """A schedule was found in which the rendezvous does what it must never do."""


class Clockwork:
    """A clock, the queue of what is due, and the one source of chance.

    Args:
        seed: decides every choice, so that a schedule can be replayed.
        tracing: keep a readable trace.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.tracing = tracing
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Calls ``action(*args)`` after ``delay`` simulated seconds."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, action, args))

    def run(self, until: float, finished: Callable[[], bool]) -> None:
        """Lets things happen until ``finished()``, or until the moment ``until``."""
        queue = self._queue
        while queue and not finished():
            moment, _, action, args = queue[0]
            if moment > until:
                break
            heapq.heappop(queue)
            self.now = moment
            action(*args)
        else:
            return
        self.now = until

    def log(self, who: str, text: str) -> None:
        """Adds a line to the trace."""
        if self.tracing:
            self.trace.append(f"{self.now:10.4f}  {who:<6} {text}")

    # -- chances

    def within(self, low: float, high: float) -> float:
        """A moment between the two."""
        return low + (high - low) * self.random.random()

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def hop(self) -> float:
        """How long a message takes: mostly a millisecond, sometimes much longer."""
        luck = self.random.random()
        return 0.0005 + 0.002 * luck if luck < 0.9 else 0.15 * self.random.random()
