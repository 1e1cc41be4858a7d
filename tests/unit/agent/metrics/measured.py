"""Tables of events, and what an agent has measured after them."""

from __future__ import annotations

from elastic_runtime.agent.metrics.metrics_fold import (
    LoopTurned,
    Measured,
    RecoveryBegan,
    WorkerProgress,
    fold,
)
from elastic_runtime.events import Event
from elastic_runtime.events.checkpoint_events import (
    CheckpointResumed,
)
from elastic_runtime.events.round_events import RoundLeft, RoundRecovered, RoundSealed
from elastic_runtime.protocol.round_records import Budget

Told = tuple[float, Event | WorkerProgress]


def told(*events: Told, state: Measured | None = None) -> Measured:
    """What is known after these events, of an agent that began at 100."""
    state = state or Measured(100.0)
    for now, event in events:
        state = fold(state, event, now)
    return state


def sealed(now: float, number: int, *, rank: int = 0, **restarts: int) -> Told:
    known = Budget().restarts | restarts
    return now, RoundSealed(number, workers=4, nodes=2, group_rank=rank, restarts=known)


def turned(now: float, step: int, count: int, moment: float | None = None) -> Told:
    return now, LoopTurned(step, count, now if moment is None else moment)


def interrupted(now: float, step: int, count: int, moment: float) -> Told:
    return now, RecoveryBegan(step, count, moment)


def left(now: float) -> Told:
    return now, RoundLeft(1, "")


def resumed(now: float, number: int, step: int, seconds: float, source: str = "storage") -> Told:
    return now, CheckpointResumed("x", step, seconds, source, round=number)


def recovered(now: float, number: int, step: int) -> Told:
    return now, RoundRecovered(number, 0.0, step)


# Steps 1 to 11 in ten seconds, then a worker is killed, and the job goes back to step 5.
BEGUN = (sealed(105, 1), turned(110, 1, 1), turned(120, 11, 11))


KILLED = (
    *BEGUN,
    interrupted(121, 11, 11, 120),
    left(121.5),
    sealed(123, 2, killed=1),
    resumed(126, 2, 5, seconds=2),
    recovered(130, 2, 6),
)
