"""What can be got ready while this process takes part in no round: its loaders.

Between two rounds a worker waits for its agent, for some ten milliseconds. What the next round
would otherwise wait for is done then, in a thread of its own.
"""

from __future__ import annotations

import weakref
from typing import Protocol


class Settling(Protocol):
    """Something that is left in the middle of its work when a round ends."""

    def settle(self) -> None:
        """Begins to bring it back to rest, and returns at once."""


_settling: weakref.WeakSet[Settling] = weakref.WeakSet()


def settle_in_breaks(what: Settling) -> None:
    """Has this settle from now on whenever a round is left, as long as it lives."""
    _settling.add(what)


def begin_break() -> None:
    """A round is left, or the first one is waited for."""
    for what in list(_settling):
        what.settle()
