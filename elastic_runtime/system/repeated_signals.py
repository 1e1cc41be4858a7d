"""When a signal asks for the same thing as the one before it: pure."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.limits import ONE_REQUEST


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A signal that asked this process to end.

    Attributes:
        signum: which one.
        at: when, in seconds on the monotonic clock.
    """

    signum: int
    at: float

    def repeated_by(self, signum: int, now: float) -> bool:
        """Whether another signal only says it again; if not, it asks to end at once."""
        return signum == self.signum and now < self.at + ONE_REQUEST
