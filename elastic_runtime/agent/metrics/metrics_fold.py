"""What an agent measures of its job: pure. ``fold(state, event, now) → state``.

Nothing is measured for its own sake: the agent's events say all there is to know, and two more,
which are for this module alone, say what is no event for people (``WorkerProgress``). All moments
are seconds on the machine's monotonic clock. ``docs/operations.md`` says what each figure means;
``prometheus_text`` writes them as Prometheus reads them, ``meter`` feeds and serves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_runtime.events import Event
from elastic_runtime.events.checkpoint_events import (
    CheckpointCommitted,
    CheckpointResumed,
    CheckpointSaved,
    CheckpointSaveFailed,
)
from elastic_runtime.events.job_events import JobDone, JobFailed
from elastic_runtime.events.round_events import (
    RESTART_CLASSES,
    RegroupChosen,
    RoundEntered,
    RoundLeft,
    RoundRecovered,
    RoundSealed,
)
from elastic_runtime.events.snapshot_events import SnapshotTaken
from elastic_runtime.limits import HANGING_AGENT, HISTOGRAM_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED, KILLED, LOST, PLANNED = RESTART_CLASSES
DETECT, RENDEZVOUS, START, RESTORE, FIRST_STEP = PHASES = (
    *("detect", "rendezvous", "start", "restore"),
    "first_step",
)

_NONE = dict.fromkeys(RESTART_CLASSES, 0)


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """What the agent sees of its workers from time to time.

    Attributes:
        step: the last one; -1: none.
        count: how many they have made in this round.
        moment: when they made the last one.
    """

    step: int
    count: int
    moment: float


class LoopTurned(WorkerProgress):
    """The agent's main loop has run once more."""


class RecoveryBegan(WorkerProgress):
    """The round of this agent is about to end, or a worker of it has ended."""


# Where that goes which is measured.
Watch = Callable[[Event | WorkerProgress], None]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often something took how long.

    Attributes:
        counts: by the first of ``HISTOGRAM_BOUNDS`` that is not below it; the last one is
            for the rest.
        total: the sum of all.
    """

    counts: tuple[int, ...] = (0,) * (len(HISTOGRAM_BOUNDS) + 1)
    total: float = 0.0

    def with_(self, seconds: float) -> Histogram:
        """With one more."""
        place = bisect_left(HISTOGRAM_BOUNDS, seconds)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Histogram(counts, self.total + seconds)


@dataclass(frozen=True, slots=True)
class OpenRecovery:
    """A round that came to its end, and the way to the first step after it.

    Attributes:
        at: when this agent knew.
        stepped: when its workers had made their last step; 0.0: none.
        restarts: those until then, by class.
        restored: when rank 0 had its state again; None: it has not reported that.
        restoring: how many seconds that took it.
    """

    at: float
    stepped: float
    restarts: Mapping[str, int]
    restored: float | None = None
    restoring: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All that is known.

    Attributes:
        began: when the agent began.
        turned: when its main loop last ran; None: it has not begun, or has ended.
        round, world, nodes, rank: of the last round that this node was in; rank is the node's.
        sealed: when that round began.
        ready: the node is in it.
        restarts: rounds of the whole job that came to their end, by class.
        open_recovery: set from the end of a round to the first step of the next one.
        recovery: seconds by phase and class, where this node has rank 0.
        step: the last one of the node's workers; -1: none.
        stepped: when that was.
        peak: the last step before this round.
        first: the round has made a step.
        counted: steps of the round, as its workers count them.
        steps: all steps of the node's workers, also those made twice.
        training: seconds in which they advanced.
        lost: steps that had to be made again.
        stalled: seconds from the last step of a round to the first one of the next, all together.
        checkpoint_step: of the last checkpoint that was saved or resumed from; -1: none.
        checkpoint_bytes: of the last one that was saved; None: none was.
        saving: seconds of saves.
        saved_bytes: of all saves.
        saves_failed: how many.
        snapshot_step, snapshot_bytes: of the last snapshot.
        fault: why the last round that broke did; "": none has.
        regroup: in place, how ranks regroup; "": not in place, or another node has reported it.
    """

    began: float
    turned: float | None = None
    round: int = 0
    world: int = 0
    nodes: int = 0
    rank: int = -1
    sealed: float = 0.0
    ready: bool = False
    restarts: Mapping[str, int] = field(default_factory=lambda: _NONE)
    open_recovery: OpenRecovery | None = None
    recovery: Mapping[tuple[str, str], Histogram] = field(default_factory=dict)
    step: int = -1
    stepped: float = 0.0
    peak: int = -1
    first: bool = False
    counted: int = 0
    steps: int = 0
    training: float = 0.0
    lost: int = 0
    stalled: float = 0.0
    checkpoint_step: int = -1
    checkpoint_bytes: int | None = None
    saving: Histogram = Histogram()
    saved_bytes: int = 0
    saves_failed: int = 0
    snapshot_step: int = -1
    snapshot_bytes: int | None = None
    fault: str = ""
    regroup: str = ""

    def goodput(self, now: float) -> float | None:
        """The share of the time since the agent began in which steps advanced that still count.

        Returns:
            None if the workers report no steps.
        """
        if not self.steps or now <= self.began:
            return None
        kept = 1.0 - min(1.0, self.lost / self.steps)
        return self.training * kept / (now - self.began)

    def summary(self, now: float) -> dict[str, Any]:
        """What a person wants to know at the end; goodput is missing if no steps were reported."""
        goodput = self.goodput(now)
        known = {} if goodput is None else {"goodput": round(goodput, 3)}
        return {
            "restarts": dict(self.restarts),
            "lost_steps": self.lost,
            "stalled": round(self.stalled, 1),
            **known,
        }

    def status(self, run_id: str, node: str, now: float) -> dict[str, Any]:
        """What the controller asks for; the step is -1 while there is none."""
        goodput = self.goodput(now)
        return {
            "run_id": run_id,
            "node": node,
            "round": self.round,
            "world": self.world,
            "nodes": self.nodes,
            "step": self.step,
            "checkpoint_step": self.checkpoint_step,
            "ready": self.ready,
            "restarts": dict(self.restarts),
            **({} if goodput is None else {"goodput": round(goodput, 3)}),
            **({"fault": self.fault} if self.fault else {}),
            **({"regroup": self.regroup} if self.regroup else {}),
        }

    def hangs(self, now: float) -> float | None:
        """Seconds since the agent's main loop last ran, if they are too many."""
        idle = now - self.turned if self.turned is not None else 0.0
        return idle if idle > HANGING_AGENT else None


def fold(state: Measured, event: Event | WorkerProgress, now: float) -> Measured:
    """What is known after an event.

    Args:
        state: what was known before.
        event: one that says nothing of interest changes nothing.
        now: when it happened.
    """
    match event:
        case WorkerProgress():
            return _progressed(state, event, now)
        case RoundSealed():
            return _sealed(state, event, now)
        case RoundLeft():
            return replace(state, ready=False)
        case RegroupChosen():
            return replace(state, regroup=event.how)
        case RoundEntered():
            return _restored(state, event.round, now, event.sync)
        case RoundRecovered():
            return _recovered(state, event, now)
        case SnapshotTaken():
            return replace(state, snapshot_step=event.step, snapshot_bytes=event.bytes)
        case JobDone() | JobFailed():
            return replace(state, ready=False, turned=None)
        case _:
            return _checkpoint(state, event, now)


# ---------------------------------------------------------------- steps


def _progressed(state: Measured, seen: WorkerProgress, now: float) -> Measured:
    state = _with_steps(state, seen)
    if isinstance(seen, RecoveryBegan):
        return replace(state, open_recovery=OpenRecovery(now, state.stepped, state.restarts))
    return replace(state, turned=now)


def _with_steps(state: Measured, seen: WorkerProgress) -> Measured:
    """Steps are seen from time to time, not one by one: so many since the last time."""
    step, count, moment = seen.step, seen.count, seen.moment
    # Until the first step of a round, its workers show the last one of the round before.
    if not state.ready or moment <= max(state.stepped, state.sealed):
        return state
    more = max(0, count - state.counted)
    return replace(
        state,
        step=step,
        stepped=moment,
        first=True,
        counted=state.counted + more,
        steps=state.steps + more,
        # What comes before the first step is the recovery, or the start of the job.
        training=state.training + (moment - state.stepped if state.first else 0.0),
    )


# ---------------------------------------------------------------- rounds


def _sealed(state: Measured, event: RoundSealed, now: float) -> Measured:
    restarts = {**_NONE, **(event.restarts or {})}
    broke = any(restarts[name] > state.restarts[name] for name in restarts if name != "planned")
    return replace(
        state,
        fault=event.reason if broke and state.round else state.fault,
        round=event.round,
        world=event.workers,
        nodes=event.nodes,
        rank=event.group_rank,
        restarts=restarts,
        sealed=now,
        ready=True,
        peak=state.step,
        first=False,
        counted=0,
    )


def _restored(state: Measured, number: int | None, now: float, seconds: float) -> Measured:
    if state.open_recovery is None or number != state.round:
        return state
    return replace(
        state, open_recovery=replace(state.open_recovery, restored=now, restoring=seconds)
    )


def _recovered(state: Measured, event: RoundRecovered, now: float) -> Measured:
    open_recovery, first = state.open_recovery, event.step
    if open_recovery is None:
        return state
    state = replace(state, open_recovery=None, stalled=state.stalled + (event.stalled or 0.0))
    if 0 <= first <= state.peak:
        state = replace(state, lost=state.lost + state.peak - first + 1)
    if state.rank != 0:  # one node tells of each recovery, so that a sum over all counts it once
        return state
    why = _class(state.restarts, open_recovery.restarts)
    recovery = dict(state.recovery)
    for phase, seconds in _phases(open_recovery, state.sealed, now).items():
        if phase != DETECT or why != PLANNED:
            key = phase, why
            recovery[key] = recovery.get(key, Histogram()).with_(max(0.0, seconds))
    return replace(state, recovery=recovery)


def _class(after: Mapping[str, int], before: Mapping[str, int]) -> str:
    """What the recovery was from; of several, what weighs most."""
    return next((one for one in RESTART_CLASSES if after[one] > before[one]), PLANNED)


def _phases(open_recovery: OpenRecovery, sealed: float, now: float) -> dict[str, float]:
    """How long each phase took; unknown ones are missing."""
    phases = {RENDEZVOUS: sealed - open_recovery.at}
    if open_recovery.stepped:
        phases[DETECT] = open_recovery.at - open_recovery.stepped
    restored = open_recovery.restored
    if restored is None:
        return {**phases, FIRST_STEP: now - sealed}
    return {
        **phases,
        START: restored - open_recovery.restoring - sealed,
        RESTORE: open_recovery.restoring,
        FIRST_STEP: now - restored,
    }


# ---------------------------------------------------------------- checkpoints


def _checkpoint(state: Measured, event: Event | WorkerProgress, now: float) -> Measured:
    match event:
        case CheckpointResumed():
            if event.source == "storage":
                state = replace(state, checkpoint_step=event.step)
            return _restored(state, event.round, now, event.seconds)
        case CheckpointSaved():
            return replace(
                state,
                checkpoint_step=event.step,
                checkpoint_bytes=event.bytes,
                saved_bytes=state.saved_bytes + event.bytes,
                saving=state.saving.with_(event.seconds),
            )
        case CheckpointCommitted():
            return replace(state, checkpoint_step=event.step)
        case CheckpointSaveFailed():
            return replace(state, saves_failed=state.saves_failed + 1)
        case _:
            return state
