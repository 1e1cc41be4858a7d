"""Who goes on from where after a change of the world between two syncs: pure.

A rank that was there in the last round in which anybody trained keeps what it has trained since the
common commit. It may be some inner steps behind another, as no rank waits for others between two
syncs. One that was not there, or whose memory is not that of the common commit, begins with the
common parameters where the furthest one is, so that it meets the others at the next sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.diloco.rhythm import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rank has come.

    Attributes:
        after: the step whose commit its own training has begun with; -1: it has trained nothing.
        schedule: how far it is from there.
        told: the script knows of the last sync.
        round: the last one in which it has trained. A rank that was left out since is none of those
            who were there: others have had its samples.
    """

    after: int
    schedule: Schedule
    told: bool = True
    round: int = 0

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> Standing:
        """From what ``plain`` makes."""
        after, position, ages, told, last = plain
        return cls(after, Schedule(position, tuple(ages)), told, last)

    @property
    def plain(self) -> list[Any]:
        """For JSON."""
        schedule = self.schedule
        return [self.after, schedule.position, list(schedule.ages), self.told, self.round]


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks go on with.

    Attributes:
        schedule: that of the furthest rank.
        furthest: which rank that is; None: nobody has trained anything since the commit.
        kept: ranks that go on from where they are.
        behind: those of them that are not as far as the furthest.
        new: ranks that begin with the common parameters.
        told: the script of the furthest rank knows of the last sync.
    """

    schedule: Schedule
    furthest: int | None
    kept: tuple[int, ...]
    behind: tuple[int, ...]
    new: tuple[int, ...]
    told: bool = True


def meet(standings: Sequence[Standing], step: int) -> Meeting:
    """Decides who keeps what.

    Args:
        standings: of all ranks, by rank.
        step: of the commit that all ranks have by now.
    """
    last = max((one.round for one in standings if one.after >= 0), default=0)
    kept = tuple(
        rank for rank, one in enumerate(standings) if one.after == step and one.round == last
    )
    new = tuple(rank for rank in range(len(standings)) if rank not in kept)
    if not kept:
        beginning = Schedule(0, (0,) * len(standings[0].schedule.ages))
        return Meeting(beginning, None, (), (), new)
    furthest = max(kept, key=lambda rank: (standings[rank].schedule.position, -rank))
    schedule = standings[furthest].schedule
    behind = tuple(rank for rank in kept if standings[rank].schedule != schedule)
    return Meeting(schedule, furthest, kept, behind, new, standings[furthest].told)
