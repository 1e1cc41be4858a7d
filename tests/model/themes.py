"""The kinds of schedules: what happens in them, how often and how fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """A kind of schedule.

    Attributes:
        faults: what happens, with weights; what is missing never happens.
        durations: how long cuts, pauses and outages last at most, to choose from.
        gaps: time from one fault to the next, to choose from.
        counts: how many faults, to choose from.
        held: share of schedules in which nobody is through before all faults are over.
        stubborn: share of stops in which workers do not want to end.
    """

    faults: dict[str, int]
    durations: tuple[float, ...] = (0.3, 2.0, 5.0, 14.0)
    gaps: tuple[tuple[float, float], ...] = (
        (0.0, 0.02),
        (0.0, 0.5),
        (0.0, 0.5),
        (0.5, 4.0),
        (1.0, 15.0),
    )
    counts: tuple[int, ...] = (1, 1, 2, 2, 3, 4)
    held: float = 0.4
    stubborn: float = 0.02


MIXED = Theme(
    {
        "crash": 14,
        "crash all": 3,
        "lose host": 6,
        "pause": 14,
        "cut": 12,
        "part": 5,
        "restart store": 6,
        "amnesia": 6,
        "worker fails": 12,
        "leave": 8,
        "join": 12,
        "intrude": 3,
        "finish soon": 8,
        "garble": 2,
    }
)
# Whole groups out of sight, while others would like to go on without them.
ISLANDS = Theme(
    {"cut all": 6, "pause all": 2, "cut": 3, "join": 8, "crash": 2, "lose host": 2, "leave": 1},
    durations=(2.0, 14.0, 30.0),
    gaps=((0.0, 0.5), (0.5, 4.0), (1.0, 15.0)),
    counts=(2, 3, 3, 4),
    held=1.0,
    stubborn=0.3,
)
FORGETTING = Theme(
    {"amnesia": 8, "join": 3, "crash": 3, "worker fails": 2, "leave": 1, "restart store": 2},
    durations=(0.3, 2.0, 5.0),
    counts=(1, 2, 3, 4),
    held=0.8,
)
# One blow after the other, most of them right after something was written.
CHURN = Theme(
    {"crash": 6, "lose host": 1, "worker fails": 6, "join": 6, "leave": 3, "pause": 3, "part": 2},
    gaps=((0.0, 0.005), (0.0, 0.05), (0.0, 0.3)),
    counts=(3, 4, 5, 6),
    held=0.6,
)
ENDING = Theme(
    {"finish soon": 6, "crash": 3, "pause": 3, "cut": 3, "join": 3, "worker fails": 2, "leave": 2},
    gaps=((0.0, 0.02), (0.0, 0.1), (0.0, 0.5), (0.5, 3.0)),
    counts=(2, 3, 4),
    held=0.0,
)
# The store alone fails: a whole group must go on.
OUTAGE = Theme(
    {"amnesia": 3, "restart store": 3, "garble": 2},
    durations=(0.3, 2.0, 5.0),
    gaps=((4.0, 8.0),),
    counts=(1, 2, 3),
    held=1.0,
)
# Nodes that do not reach each other, though all reach the store: nobody dies of it.
PARTED = Theme(
    {"part": 5, "part one": 5, "part in two": 3, "cut": 1},
    durations=(0.3, 2.0, 5.0, 10.0),
    gaps=((0.0, 0.5), (0.5, 4.0), (1.0, 15.0)),
    counts=(1, 2, 3, 4),
    held=0.8,
)
# The same among nodes and workers that die, also at the same moment.
TORN = Theme(
    {
        "part": 4,
        "part one": 4,
        "part in two": 2,
        "crash": 4,
        "worker fails": 4,
        "blow": 4,
        "participant dies": 3,
        "join": 5,
        "leave": 1,
        "pause": 1,
    },
    durations=(0.3, 2.0, 5.0),
    gaps=((0.0, 0.005), (0.0, 0.05), (0.0, 0.5), (0.5, 4.0)),
    counts=(2, 3, 4, 5),
    held=0.6,
)
# The store never comes back, for anybody or for some.
GONE = Theme(
    {"lose store": 6, "cut for good": 4, "crash": 3, "worker fails": 5, "leave": 1, "join": 3},
    gaps=((0.0, 0.1), (0.0, 2.0), (1.0, 8.0)),
    counts=(1, 2, 3, 4),
    held=0.7,
)
# Agents whose main loop stands still.
HANGING = Theme(
    {"hang": 8, "crash": 2, "worker fails": 4, "join": 3, "cut": 1, "leave": 1},
    durations=(0.3, 2.0, 5.0, 14.0),
    counts=(1, 2, 3, 4),
    held=0.6,
)
# The store forgets while its members are cut off, and a node comes that was told of them.
EMPTIED = Theme(
    {"forget unseen": 6, "crash": 2, "worker fails": 2},
    durations=(2.0, 5.0, 14.0, 30.0),
    gaps=((1.0, 8.0), (4.0, 20.0)),
    counts=(1, 2, 3),
    held=1.0,
)
# Nodes stand still with a write on its way, again and again.
STALLED = Theme(
    {"pause": 8, "worker fails": 4, "join": 3, "crash": 1},
    durations=(2.0, 5.0),
    gaps=((0.0, 0.005), (0.0, 0.02), (1.0, 4.0)),
    counts=(4, 5, 6, 8),
    held=0.6,
)
# The parts of rounds vanish or are not what they were, and nodes die in the middle of it.
PARTS = Theme(
    {
        "lose parts": 8,
        "swap parts": 3,
        "crash": 5,
        "lose host": 1,
        "worker fails": 3,
        "amnesia": 2,
        "pause": 2,
        "join": 4,
        "leave": 2,
        "cut": 2,
        "finish soon": 1,
    },
    gaps=((0.0, 0.005), (0.0, 0.05), (0.0, 0.5), (0.5, 4.0), (1.0, 15.0)),
    counts=(2, 3, 4, 5, 6),
    held=0.6,
)
THEMES = (MIXED, MIXED, PARTED, TORN, MIXED, ISLANDS, FORGETTING, CHURN, CHURN, ENDING, OUTAGE)
THEMES += (GONE, HANGING, EMPTIED)
BY_NAME = {name.lower(): it for name, it in vars().copy().items() if isinstance(it, Theme)}
