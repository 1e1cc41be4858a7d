"""What can be got ready while this process takes part in no round: its loaders.

Between two rounds a worker waits for its agent and for other ranks, for some ten milliseconds. What
the first step would otherwise wait for is done then, by others than the main thread.
"""

from __future__ import annotations

import weakref
from typing import Protocol


class InBreaks(Protocol):
    """Something that a round leaves in the middle of its work, and that the next one needs.

    Both methods only begin, return at once, and raise nothing.
    """

    def settle(self, *, first: bool) -> None:
        """Comes to rest.

        Args:
            first: no round was left yet; the first one is waited for.
        """

    def prepare(self, rank: int, world: int) -> None:
        """Begins with what the next round will need, as far as that is known.

        Args:
            rank: of this process in that round.
            world: how many ranks it has.
        """

    def finish(self) -> None:
        """No further round follows: no ranks are connected any more."""


_all: weakref.WeakSet[InBreaks] = weakref.WeakSet()


def use_breaks(what: InBreaks) -> None:
    """Has this settle and prepare from now on, as long as it lives."""
    _all.add(what)


def begin_break(*, first: bool = False) -> None:
    """A round is left, or the first one is waited for."""
    for what in list(_all):
        what.settle(first=first)


def end_break(rank: int, world: int) -> None:
    """The next round is known; to be called again if the state of this process has changed."""
    for what in list(_all):
        what.prepare(rank, world)


def end_breaks() -> None:
    """``elastic.run`` is over."""
    for what in list(_all):
        what.finish()
