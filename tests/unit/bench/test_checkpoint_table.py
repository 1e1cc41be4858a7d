"""The table of the checkpoint benchmark, on figures made by hand."""

from __future__ import annotations

from scripts.bench.checkpoints import loading, saving
from scripts.bench.checkpoints.contest import Sample, Size
from scripts.bench.checkpoints.table import Run, table


def line(row: str, **values: float) -> str:
    """The line of one row, with a figure for each contender."""
    samples = [Sample(row, name.replace("_", "."), [value]) for name, value in values.items()]
    (found,) = table([Run(Size(1 << 30, 1), samples)]).splitlines()[1:]
    return found


def test_times_are_bounded_from_above() -> None:
    assert line(saving.BLOCKED, limit=0.1, ours=0.12).endswith("1.20  ≤ 1.2 × limit")
    assert line(saving.BLOCKED, limit=0.1, ours=0.13).endswith("1.30  ≤ 1.2 × limit  MISSED")


def test_speeds_are_bounded_from_below() -> None:
    assert line(loading.LOAD, ours=0.1, dcp=0.25, limit=0.1).endswith("2.50  ≥ 2 × dcp")
    assert line(loading.LOAD, ours=0.1, dcp=0.15).endswith("1.50  ≥ 2 × dcp  MISSED")


def test_shares_stand_for_themselves() -> None:
    assert line(saving.EXTRA, ours=1.0, dcp=2.5).endswith("1.00  ≤ 1.05")
    assert "2.50x" in line(saving.EXTRA, ours=1.01, dcp=2.5)
    assert line(saving.EXTRA, ours=1.1, dcp=2.5).endswith("MISSED")
    assert line(saving.SLOWDOWN, ours=9.0).endswith("9.00  reported")


def test_medians_and_sizes_are_shown() -> None:
    samples = [
        Sample(saving.DURABLE, "limit", [0.1, 0.3, 0.2]),
        Sample(saving.DURABLE, "ours", [0.5, 0.1, 0.2]),
    ]
    shown = table([Run(Size(200 << 20, 2), samples)])
    assert "200 MiB     2   200.0 ms   200.0 ms          -" in shown
