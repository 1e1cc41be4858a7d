"""Pauses that grow: for decisions and loops that count their failures themselves.

A call that is simply made again until it works is tenacity's; this is for where something else
happens during the pause.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_MOST_STEPS = 60  # a float holds what has grown so often, however long something fails


@dataclass(frozen=True)
class Backoff:
    """How long to wait after failures in a row.

    Attributes:
        first: after the first one, in seconds.
        longest: after many, in seconds.
        factor: what each pause is multiplied by for the next one.
    """

    first: float
    longest: float
    factor: float = 2.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; the first is 1."""
        steps = min(max(failures - 1, 0), _MOST_STEPS)
        return min(self.longest, self.first * self.factor**steps)

    def random_pause(self, failures: int) -> float:
        """The same, at random down to a half of it: so many that failed at once spread out."""
        return self.pause(failures) * random.uniform(0.5, 1.0)

    def pauses(self, number: int) -> tuple[float, ...]:
        """The first pauses, so many of them."""
        return tuple(self.pause(failures) for failures in range(1, number + 1))
