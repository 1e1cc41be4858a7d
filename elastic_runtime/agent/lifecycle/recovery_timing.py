"""Since when a round is about to end, which says how long a recovery took: pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """The first sign that a round will end.

    Attributes:
        round: which round that is.
        at: seconds on the monotonic clock.
        stepped: when the last step before that was, on the same clock; 0.0: there was none.
    """

    round: int
    at: float
    stepped: float


@dataclass(frozen=True, slots=True)
class Troubles:
    """What this node recovers from.

    Attributes:
        first: from what; None: from nothing.
        change: an order to leave a round that has come before that round's first step, as where a
            replacement is ready at once. If the first step is made all the same, this is next.
    """

    first: Trouble | None = None
    change: Trouble | None = None

    def seen(self, trouble: Trouble, *, ordered: bool = False) -> Troubles:
        """With one more sign of trouble.

        Args:
            trouble: it.
            ordered: it is an order to leave that round, and no late echo of a round before.
        """
        if self.first is None:
            return Troubles(trouble)
        latest = self.change or self.first
        if ordered and trouble.round > latest.round:
            return Troubles(self.first, trouble)
        return self

    def over(self, number: int, now: float) -> tuple[Trouble | None, Troubles]:
        """After a first step in a round.

        Args:
            number: which round.
            now: when, in seconds on the monotonic clock. What is still there counts from then on,
                so that no second counts twice.

        Returns:
            The trouble that is over by that, if any, and what there is still.
        """
        if self.first is None or self.first.round >= number:
            return None, self
        if self.change is None or self.change.round < number:
            return self.first, Troubles()
        return self.first, Troubles(Trouble(self.change.round, now, now))
