"""What a cut cost a job, computed from the steps that its ranks have made: pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.harness import Note
    from tests.partitions.cuts import Cut


@dataclass(frozen=True, slots=True)
class Made:
    """A rank has made a step; ``at`` in nanoseconds, here and below."""

    at: int
    worker: str
    round: int
    world: int
    step: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a cut cost. All times in seconds.

    Attributes:
        cut: which one.
        others: from the cut to the first step of a round that was formed after it; -1: none was.
        stalled: the longest time in which nobody made a step, from the cut until all were back.
        back: from the heal until all nodes had made a step together.
        rounds: how many rounds it took.
        replaced: workers that were not there before.
        repeated: steps that were made again.
        failures, fruitless: what the budget counted more than before.
    """

    cut: Cut
    others: float
    stalled: float
    back: float
    rounds: int
    replaced: int
    repeated: int
    failures: int
    fruitless: int

    def __str__(self) -> str:
        others = "-" if self.others < 0 else f"{self.others:.1f}"
        return (
            f"{self.cut}: others {others}, stalled {self.stalled:.1f}, back {self.back:.1f}; "
            f"{self.rounds} rounds, {self.replaced} workers replaced, {self.repeated} steps "
            f"repeated, {self.failures} failures, {self.fruitless} fruitless"
        )


def whole_at(made: Iterable[Made], nodes: int, since: int) -> int:
    """When all nodes, of one worker each, had first made a step together, begun after a moment.

    Returns:
        The moment; 0: they have not.
    """
    steps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in made:
        if one.at > since and one.world == nodes:
            steps[one.round, one.step].append(one.at)
    return min((max(ats) for ats in steps.values() if len(ats) == nodes), default=0)


def others_after(made: Iterable[Made], cut: int, until: int, rounds: int) -> float:
    """Seconds from a cut until a round beyond ``rounds`` made its first step; -1: none did."""
    later = [one.at for one in made if one.round > rounds and cut < one.at <= until]
    return (min(later) - cut) / 1e9 if later else -1.0


def longest_stall(made: Iterable[Made], cut: int, until: int) -> float:
    """The longest time between two steps of anybody, in seconds."""
    steps = sorted(one.at for one in made if cut < one.at < until)
    return max(after - before for before, after in pairwise([cut, *steps, until])) / 1e9


def repeated_steps(made: Iterable[Made | Note], since: int) -> int:
    """How many steps were made in two rounds, the later time after a moment."""
    first: dict[int, int] = {}
    again = set()
    for one in sorted(made, key=lambda one: one.at):
        if first.setdefault(one.step, one.round) != one.round and one.at > since:
            again.add((one.round, one.step))
    return len(again)
