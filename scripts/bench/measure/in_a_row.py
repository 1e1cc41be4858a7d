"""Many faults to one job, one after the other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from scripts.bench.measure.contenders import CONTENDERS
from scripts.bench.measure.faults import FAULTS, Ground, Result, Trial, measure_floor, start, strike
from scripts.bench.measure.floor import FLOOR
from scripts.bench.measure.job import Job
from tests import processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# A job that has lost a node gets another one before the next fault, which is a trial as well.
_GROWS = "join"


def in_a_row(trials: Sequence[Trial], directory: Path, ground: Ground) -> Iterator[Result]:
    """Measures all trials, those of each contender and size on one job.

    A job that does not come back is ended, and the next trial of its kind starts another one. One
    contender follows the other: two jobs that train at the same time would slow each other down.

    Args:
        trials: what to measure; joins that were not asked for are added where they are needed.
        directory: for the files of all jobs.
        ground: what the trials share.

    Yields:
        The result of each trial.
    """
    kinds: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        kinds.setdefault((trial.contender, trial.nodes), []).append(trial)
    for (name, nodes), row in kinds.items():
        if name == FLOOR:
            yield from (measure_floor(trial, ground.deadline) for trial in row)
            continue
        with ExitStack() as stack:
            one = _Row(directory / f"{name}-{nodes}", ground, stack)
            for trial in row:
                yield from one.make(trial)


class _Row:
    """The trials of one contender and size.

    Args:
        directory: for the files of its jobs.
        ground: what it shares with the others.
        stack: ends its jobs at the latest.
    """

    def __init__(self, directory: Path, ground: Ground, stack: ExitStack) -> None:
        self._directory = directory
        self._ground = ground
        self._stack = stack
        self._jobs = 0
        self._job: Job | None = None
        self._nodes = 0

    def make(self, trial: Trial) -> Iterator[Result]:
        """Makes a trial, and before it what it needs."""
        wanted = trial.nodes - max(0, FAULTS[trial.fault].nodes)
        if self._job is None:
            try:
                self._start(replace(trial, nodes=wanted, fault="worker-kill"))
            except processes.Overdue as overdue:
                yield Result(trial, f"did not start: {overdue}", None)
                return
        while self._job is not None and self._nodes < wanted:
            yield self._strike(replace(trial, fault=_GROWS, nodes=self._nodes + 1))
        if self._job is not None and self._nodes == wanted:
            yield self._strike(trial)

    def _start(self, trial: Trial) -> None:
        """Starts a job with so many nodes as the trial has before a fault that takes none."""
        ground = self._ground
        place = self._directory / str(self._jobs)
        job = Job(CONTENDERS[trial.contender], place, ground.etcd, ground.script)
        self._jobs += 1
        self._stack.enter_context(job)
        start(job, trial)
        self._job, self._nodes = job, trial.nodes

    def _strike(self, trial: Trial) -> Result:
        job = self._job
        assert job is not None
        outcome, cost = strike(job, trial, self._ground.deadline)
        self._nodes += FAULTS[trial.fault].nodes
        if cost is None:
            job.__exit__()
            self._job = None
        return Result(trial, outcome, cost)
