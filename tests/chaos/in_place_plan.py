"""Which faults come, in which order and how close to each other: pure, the same for each seed.

Some rank that holds the state always lives, unless a fault says otherwise: then a checkpoint does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FEWEST, MOST = 2, 4


class Kind(Enum):
    """What is done."""

    KILL_WORKER = "kill worker"
    KILL_NODE = "kill node"
    JOIN = "join"
    HANG = "hang"  # outside of a collective, for ever
    BETWEEN = "kill between optimizer and commit"  # while the others wait in a collective there
    ERROR_FILE = "kill while writing the error file"
    SERVER = "kill fork server"
    SERVER_AGAIN = "kill fork server and the next while it imports"
    SLOW = "slow replacement that all wait for"
    # A node that is out of reach, and comes back after some faults.
    STOP_NODE = "stop node"
    STOP_LOOP = "stop agent's main thread"
    RESUME = "resume"
    # A node that is asked to leave.
    ASK = "ask to leave"
    ASK_TWICE = "ask to leave twice within 0.1 s"
    ASK_TREE = "ask all processes of a node to leave"
    # The storage of checkpoints.
    DISK_FULL = "fill disk"
    DISK_ERRORS = "break disk"
    DISK_WELL = "mend disk"
    # The store.
    ETCD = "restart etcd"
    ETCD_PAUSE = "pause etcd"
    # elasticctl scale.
    SCALE_DOWN = "scale down"
    SCALE_UP = "scale up"
    # The first node knows less than what the others have saved before they went.
    SILENT_THEN_LEFT = "first node silent while the others save and leave"
    SILENT_THEN_KILLED = "first node silent while the others save and are killed"
    SPARE_THEN_LEFT = "first node silent, then spare while the others save and leave"


class Target(Enum):
    """Who is struck."""

    LEADER = "leader"
    FIRST = "rank 0's host"
    MIDDLE = "middle"
    LAST = "last"


class Pace(Enum):
    """When it is done."""

    CALM = "calm"  # the job has made steps with all nodes
    EARLY = "early"  # it has made steps since the fault before, in whatever world
    SAVING = "saving"  # the same, and a checkpoint is being written
    SEALING = "sealing"  # the first process has left the round that the fault before has broken
    AT_ONCE = "at once"  # right after the fault before


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: Kind
    target: Target
    pace: Pace

    def __str__(self) -> str:
        return f"{self.pace.value}: {self.kind.value}, {self.target.value}"


_WEIGHTS = {
    Kind.KILL_WORKER: 6,
    Kind.KILL_NODE: 3,
    Kind.JOIN: 6,
    Kind.HANG: 1,
    Kind.BETWEEN: 2,
    Kind.ERROR_FILE: 1,
    Kind.SERVER: 1,
    Kind.SERVER_AGAIN: 1,
    Kind.SLOW: 1,
    Kind.STOP_NODE: 1,
    Kind.STOP_LOOP: 1,
    Kind.ASK: 1,
    Kind.ASK_TWICE: 1,
    Kind.ASK_TREE: 1,
    Kind.DISK_FULL: 1,
    Kind.DISK_ERRORS: 1,
    Kind.ETCD: 1,
    Kind.ETCD_PAUSE: 1,
    Kind.SCALE_DOWN: 1,
    Kind.SILENT_THEN_LEFT: 0.5,
    Kind.SILENT_THEN_KILLED: 0.5,
    Kind.SPARE_THEN_LEFT: 0.5,
}
# What has not come yet is that much more likely, so that a short run has seen all of it.
_NEW = 60
_PACES = {Pace.CALM: 10, Pace.EARLY: 5, Pace.SAVING: 3, Pace.SEALING: 3, Pace.AT_ONCE: 3}
# What follows some faults later, and is no fault.
CURES = {
    Kind.STOP_NODE: Kind.RESUME,
    Kind.STOP_LOOP: Kind.RESUME,
    Kind.DISK_FULL: Kind.DISK_WELL,
    Kind.DISK_ERRORS: Kind.DISK_WELL,
    Kind.SCALE_DOWN: Kind.SCALE_UP,
}
# Faults that a node does not come back from.
LEAVES = {Kind.KILL_NODE, Kind.ASK, Kind.ASK_TWICE, Kind.ASK_TREE}
AWAY = {Kind.STOP_NODE, Kind.STOP_LOOP}
# Those that take a rank's memory away, or out of reach.
LOSSES = {
    *(Kind.KILL_WORKER, Kind.HANG, Kind.BETWEEN, Kind.ERROR_FILE, Kind.SERVER, Kind.SERVER_AGAIN),
    *LEAVES,
    *AWAY,
}
# They have several acts, begin when all is well, and end with as many nodes as before.
PLAYS = {Kind.SLOW, Kind.SILENT_THEN_LEFT, Kind.SILENT_THEN_KILLED, Kind.SPARE_THEN_LEFT}
# Those after which only the first node is what it was: all others are new, and know nothing yet.
RENEWALS = PLAYS - {Kind.SLOW}
KINDS = tuple(_WEIGHTS)  # in an order: ids of tests are made of it


@dataclass
class _Job:
    """What is known of the job without looking at it.

    Attributes:
        running: nodes that are there and can be reached.
        holders: ranks that have the state for certain.
        limit: how many nodes train at most; the others are spares.
        ills: what must be cured, and after how many faults.
    """

    running: int
    holders: int
    limit: int
    ills: dict[Kind, int]

    @property
    def away(self) -> bool:
        return Kind.RESUME in self.ills

    @property
    def training(self) -> int:
        return min(self.running, self.limit)

    def allows(self, kind: Kind, pace: Pace) -> bool:
        """Whether this may happen to it now."""
        if kind in PLAYS:
            return pace is Pace.CALM and not self.ills
        if kind in CURES and CURES[kind] in self.ills:
            return False
        if kind in LOSSES and self.holders < 2:
            return False
        if kind in LEAVES | AWAY | {Kind.SCALE_DOWN}:
            return self.running > FEWEST
        return kind is not Kind.JOIN or self.running + self.away < MOST

    def take(self, kind: Kind, draw: random.Random) -> None:
        """This has happened."""
        self.holders -= kind in LOSSES
        if kind in RENEWALS:
            self.holders = 1
        self.running += (kind is Kind.JOIN) - (kind in LEAVES | AWAY)
        if kind in CURES:
            self.ills[CURES[kind]] = draw.randint(1, 3) + 1
        if kind is Kind.SCALE_DOWN:
            self.limit = self.running - 1

    def cured(self, *, all_of_them: bool) -> list[Kind]:
        """One more fault has passed: what is to be well again by now."""
        self.ills = {cure: left - 1 for cure, left in self.ills.items()}
        due = [cure for cure, left in self.ills.items() if all_of_them or left <= 0]
        for cure in due:
            del self.ills[cure]
        self.running += Kind.RESUME in due
        if Kind.SCALE_UP in due:
            self.limit = MOST
        return due


def faults(seed: int, count: int, nodes: int, kinds: Iterable[Kind] = KINDS) -> Iterator[Fault]:
    """Draws faults.

    Args:
        seed: the same one draws the same faults.
        count: how many; cures are none of them, and all come before the end.
        nodes: how many nodes the job starts with.
        kinds: which ones.
    """
    draw = random.Random(seed)
    job = _Job(nodes, nodes, MOST, {})
    weights = {kind: weight * _NEW for kind, weight in _WEIGHTS.items() if kind in set(kinds)}
    before: Kind | None = None
    for number in range(count):
        pace = draw.choices([*_PACES], weights=[*_PACES.values()])[0]
        if number == 0 or (before not in LOSSES and pace in (Pace.SEALING, Pace.AT_ONCE)):
            pace = Pace.CALM
        if pace is Pace.SAVING and Kind.DISK_WELL in job.ills:
            pace = Pace.EARLY
        if pace is Pace.CALM or not any(job.allows(kind, pace) for kind in weights):
            pace, job.holders = Pace.CALM, job.training
        possible = {kind: w for kind, w in weights.items() if job.allows(kind, pace)}
        kind = draw.choices([*possible], weights=[*possible.values()])[0]
        weights[kind] = _WEIGHTS[kind]
        yield Fault(kind, draw.choice([*Target]), pace)
        before = kind
        job.take(kind, draw)
        for cure in job.cured(all_of_them=number == count - 1):
            yield Fault(cure, Target.LAST, Pace.EARLY)
            before = None
