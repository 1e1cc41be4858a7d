"""When a rank that trains alone is to come together with the others, and with what: pure.

The parameters are cut into fragments, which take turns: each is synchronized once in
``sync_every`` inner steps, and all fragments at even distances. Its exchange may begin some inner
steps earlier, and runs beside them. That is Streaming DiLoCo (Douillard et al., 2025); with one
fragment and no delay it is DiLoCo (Douillard et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What a script has set.

    Attributes:
        every: inner steps from one sync to the next, of whichever fragment.
        fragments: how many take turns.
        delay: so many inner steps before a sync its exchange begins.
    """

    every: int
    fragments: int = 1
    delay: int = 0

    def begins(self, schedule: Schedule) -> bool:
        """Whether it is time for the exchange of the next sync to begin."""
        return schedule.position >= self.every - self.delay

    def is_due(self, schedule: Schedule, early: int | None = None) -> bool:
        """Whether it is time for the next sync.

        Args:
            schedule: how far this rank is.
            early: the inner step at which all have agreed to come together before it is time.
        """
        return schedule.position >= (self.every if early is None else early)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How far a rank is on its way to the next sync.

    Attributes:
        position: inner steps since the last sync.
        ages: of each fragment: inner steps since its own last sync.
    """

    position: int
    ages: tuple[int, ...]

    @classmethod
    def first(cls, rhythm: Rhythm) -> Schedule:
        """Right after a common beginning."""
        return cls(0, (0,) * rhythm.fragments)

    @property
    def fragment(self) -> int:
        """Whose turn it is: that of the fragment which has waited longest."""
        return max(range(len(self.ages)), key=lambda number: self.ages[number])

    @property
    def trained(self) -> tuple[int, ...]:
        """The fragments that have been trained since their last sync."""
        return tuple(number for number, age in enumerate(self.ages) if age)

    def stepped(self) -> Schedule:
        """After one more inner step."""
        return Schedule(self.position + 1, tuple(age + 1 for age in self.ages))

    def synced(self, turns: Sequence[int]) -> Schedule:
        """After a sync of these fragments."""
        ages = tuple(0 if number in turns else age for number, age in enumerate(self.ages))
        return Schedule(0, ages)


def cut(sizes: Sequence[int], pieces: int) -> list[range]:
    """Cuts a row of parameters into pieces of about the same size.

    Args:
        sizes: elements of each parameter, at least as many as ``pieces``.
        pieces: how many.

    Returns:
        The numbers of the parameters of each piece; none is empty.
    """
    total, bounds, done = sum(sizes), [0], 0
    for number, size in enumerate(sizes):
        left = pieces - len(bounds)
        if left == 0:
            break
        done += size
        enough = done * pieces >= total * len(bounds)
        if enough or len(sizes) - (number + 1) == left:
            bounds.append(number + 1)
    return [range(*pair) for pair in zip(bounds, [*bounds[1:], len(sizes)], strict=True)]
