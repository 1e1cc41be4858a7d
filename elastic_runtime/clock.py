"""Time, passed in: decisions never ask the operating system what time it is.

Durations and deadlines run on the monotonic clock. Nothing ever compares clocks of two hosts.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a decision's neighbour asks for the time."""

    def now(self) -> float:
        """Seconds on a monotonic clock with an arbitrary zero."""
        ...


# A moment that does not come: nothing is due.
NEVER = float("inf")


class MonotonicClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never goes back, also when the date is set."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved, for tests and simulations."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """The present moment, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock forward by ``seconds`` (not negative)."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._now += seconds
