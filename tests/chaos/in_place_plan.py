"""Which faults come, in which order and how close to each other: pure, the same for each seed.

Some rank that holds the state always lives: what nobody remembers is the checkpointer's business,
and another test's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FEWEST, MOST = 2, 4


class Kind(Enum):
    """What is done."""

    KILL_WORKER = "kill worker"
    KILL_NODE = "kill node"
    STOP_NODE = "stop node"
    RESUME = "resume"  # the node that was stopped, after five seconds
    ASK = "ask to leave"
    JOIN = "join"
    ETCD = "restart etcd"


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
    Kind.KILL_WORKER: 5,
    Kind.KILL_NODE: 3,
    Kind.STOP_NODE: 1,
    Kind.ASK: 2,
    Kind.JOIN: 5,
    Kind.ETCD: 1,
}
_PACES = {Pace.CALM: 10, Pace.EARLY: 5, Pace.SEALING: 3, Pace.AT_ONCE: 3}
# Those that take a rank's memory away, or out of reach.
LOSSES = {Kind.KILL_WORKER, Kind.KILL_NODE, Kind.STOP_NODE, Kind.ASK}
# Faults that a node does not come back from.
_LEAVES = {Kind.KILL_NODE, Kind.ASK}


def faults(seed: int, count: int, nodes: int) -> Iterator[Fault]:
    """Draws faults.

    Args:
        seed: the same one draws the same faults.
        count: how many; resuming a stopped node is none of them, and comes before the end.
        nodes: how many nodes the job starts with.
    """
    draw = random.Random(seed)
    holders = running = nodes  # ranks that have the state for certain; nodes that are not stopped
    before: Kind | None = None
    stopped_for = 0  # faults until the stopped node goes on
    for number in range(count):
        pace = draw.choices([*_PACES], weights=[*_PACES.values()])[0]
        if number == 0 or (before not in LOSSES and pace in (Pace.SEALING, Pace.AT_ONCE)):
            pace = Pace.CALM
        if pace is Pace.CALM:
            holders = running
        possible = dict(_WEIGHTS)
        if holders < 2:
            possible = {kind: w for kind, w in possible.items() if kind not in LOSSES}
        if running <= FEWEST:
            possible = {k: w for k, w in possible.items() if k not in (*_LEAVES, Kind.STOP_NODE)}
        if running + bool(stopped_for) >= MOST:
            possible.pop(Kind.JOIN)
        if stopped_for:
            possible.pop(Kind.STOP_NODE, None)
        kind = draw.choices([*possible], weights=[*possible.values()])[0]
        yield Fault(kind, draw.choice([*Target]), pace)
        before = kind
        holders -= kind in LOSSES
        running += (kind is Kind.JOIN) - (kind in _LEAVES or kind is Kind.STOP_NODE)
        if stopped_for:
            stopped_for -= 1
        elif kind is Kind.STOP_NODE:
            stopped_for = draw.randint(1, 3)
            continue
        else:
            continue
        if not stopped_for or number == count - 1:
            yield Fault(Kind.RESUME, Target.LAST, Pace.EARLY)
            running, before, stopped_for = running + 1, None, 0
