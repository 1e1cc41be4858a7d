"""The benchmarks that start ranks of their own: they run, and measure what they say."""

from __future__ import annotations

import time

import pytest

from scripts.bench import checkpoint, sync
from scripts.bench.checkpoints import saving
from scripts.bench.checkpoints.contest import Size
from scripts.bench.checkpoints.table import GOALS, Run, table
from scripts.bench.measure import floor
from tests.etcd_server import free_port


def test_the_floor_is_shorter_than_its_trial() -> None:
    began = time.monotonic()
    stall = floor.measure(ranks=3, victim=1, after=3, deadline=60.0)
    assert 0.0 < stall < time.monotonic() - began


def test_a_floor_that_no_rank_reaches_is_told() -> None:
    with pytest.raises(floor.NotBack):
        floor.measure(ranks=2, victim=1, after=1 << 30, deadline=2.0)


def test_newcomers_get_the_state_that_was_asked_for() -> None:
    task = sync.Task(ranks=3, megabytes=25.0, repeat=2, port=free_port())
    times = sync.measure(task)
    assert len(times) == 2
    assert all(one.sync > 0 and one.broadcast > 0 for one in times)
    assert times[0].nbytes == pytest.approx(25e6, rel=0.02)
    assert "3 ranks, 25 MB" in sync.table(task, times)


def test_every_row_of_the_checkpoint_benchmark_is_measured() -> None:
    size = Size(nbytes=1 << 20, ranks=2)
    rows = [row for row in checkpoint.ROWS if row != "tiny"]  # the same, and slow
    samples = checkpoint.measure(size, rows, repeat=1)
    assert {sample.row for sample in samples} == GOALS.keys() - {saving.TINY}
    assert all(value > 0 for sample in samples for value in sample.values)
    shown = table([Run(size, samples)])
    assert shown.count("\n") == len(GOALS) - 1
