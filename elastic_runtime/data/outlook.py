"""Where an iteration over batches begins, and whose shares of them it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches of which a rank still takes the shares that it had in an earlier world.

    Attributes:
        until: the position that follows them.
        rank, world: whose shares, and of how many.
        batch: samples in a step, as it was.
        at_once: how many a rank holds at a time; 0: all of its share.
    """

    until: tuple[int, int]
    rank: int
    world: int
    batch: int
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where an iteration begins, and which share of each batch it is about."""

    epoch: int
    cursor: int
    seed: int
    rank: int
    world: int
    batch: int
    at_once: int = 0
    earlier: tuple[Stretch, ...] = ()

    def at(self, position: tuple[int, int]) -> Stretch | Outlook:
        """Whose shares are taken at a position, and how large batches are there."""
        return next((one for one in self.earlier if position < one.until), self)


def earlier_shares(
    known: tuple[Stretch, ...],
    here: tuple[int, int],
    until: tuple[int, int],
    place: tuple[int, int],
    batch: int,
    at_once: int,
) -> tuple[Stretch, ...]:
    """Whose shares a rank takes until it is where another one was when the world changed.

    Up to there the batches are shared out as they were: the others have had theirs.

    Args:
        known: what was so already.
        here: its own epoch and cursor.
        until: those of the rank that was furthest.
        place: its rank in the world that is over, and how many ranks that had.
        batch: samples in a step of that world.
        at_once: how many samples a rank holds at a time; 0: all of its share.
    """
    within = (replace(one, until=min(one.until, until)) for one in known)
    left = tuple(one for one in within if here < one.until)
    if (left[-1].until if left else here) < until:
        left = (*left, Stretch(until, *place, batch, at_once))
    return left
