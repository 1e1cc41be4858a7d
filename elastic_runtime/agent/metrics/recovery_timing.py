"""What a recovery cost: since when its round was about to end, and how far the job was: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_runtime.protocol.round_records import Budget


@dataclass(frozen=True, slots=True)
class Interruption:
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
class RecoveryTimer:
    """What this node recovers from.

    Attributes:
        first: from what; None: from nothing.
        change: an order to leave a round that has come before that round's first step, as where a
            replacement is ready at once. If the first step is made all the same, this is next.
    """

    first: Interruption | None = None
    change: Interruption | None = None

    def noticed(self, interruption: Interruption, *, ordered: bool = False) -> RecoveryTimer:
        """With one more sign of interruption.

        Args:
            interruption: it.
            ordered: it is an order to leave that round, and no late echo of a round before.
        """
        if self.first is None:
            return RecoveryTimer(interruption)
        latest = self.change or self.first
        if ordered and interruption.round > latest.round:
            return RecoveryTimer(self.first, interruption)
        return self

    def left(self, stepped: float) -> RecoveryTimer:
        """After the round was left: nothing stood still while steps were made in it.

        Ranks that train alone may obey an order much later.

        Args:
            stepped: when the last step of the round was, in seconds on the monotonic clock.
        """
        if self.first is None or stepped <= self.first.at:
            return self
        return replace(self, first=replace(self.first, at=stepped, stepped=stepped))

    def first_step(self, number: int, now: float) -> tuple[Interruption | None, RecoveryTimer]:
        """After a first step in a round.

        Args:
            number: which round.
            now: when, in seconds on the monotonic clock. What is still there counts from then on,
                so that no second counts twice.

        Returns:
            The interruption that is over by that, if any, and what there is still.
        """
        if self.first is None or self.first.round >= number:
            return None, self
        if self.change is None or self.change.round < number:
            return self.first, RecoveryTimer()
        return self.first, RecoveryTimer(Interruption(self.change.round, now, now))


def step_before_round(left_at: int, budget: Budget) -> int:
    """How far the job was before a round, for counting the steps that it makes again.

    The best of all rounds is not that: what one of them has lost is not lost once more by each that
    follows it before the same step.

    Args:
        left_at: the step at which this node left the round before; -1: it was in none with steps.
        budget: of the round, for a node that has not been there.
    """
    return left_at if left_at >= 0 else budget.best_step
