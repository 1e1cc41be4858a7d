"""Pauses that double: for decisions and loops that count their failures themselves.

A call that is simply made again until it works is tenacity's; this is for where something else
happens during the pause.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 60  # a float holds it, however long something fails


@dataclass(frozen=True)
class Backoff:
    """How long to wait after failures in a row.

    Attributes:
        first: after the first one, in seconds.
        longest: after many, in seconds.
    """

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; the first is 1."""
        return min(self.longest, self.first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS))
