"""The figures and tables of the benchmarks, on histories made by hand."""

from __future__ import annotations

import pytest

from scripts.bench.checkpoints import loading, saving
from scripts.bench.checkpoints import table as checkpoints
from scripts.bench.checkpoints.contest import Sample, Size
from scripts.bench.measure.contenders import CONTENDERS
from scripts.bench.measure.faults import Result, Trial
from scripts.bench.measure.figures import Figures, Step, figures, quantile, settled
from scripts.bench.measure.floor import FLOOR
from scripts.bench.measure.report import table
from scripts.bench.recovery import plan
from scripts.bench.samples import Count, Replay, compare, elastic, restarted, skipping
from scripts.bench.steps import step_times

OLD, NEW, NEWER = 11, 22, 33


def history(round_: int, world: int, first: int, start: float, count: int) -> list[Step]:
    """``count`` steps of all ranks, one every tenth of a second."""
    return [
        Step(start + i / 10, first + i, round_, world, rank)
        for i in range(count)
        for rank in range(world)
    ]


def cost_of(steps: list[Step], fault: float, world: int, until: float) -> Figures:
    """What a fault has cost that the job has recovered from."""
    cost = figures(steps, fault, world, until=until)
    assert cost is not None
    return cost


def test_restart_from_a_checkpoint() -> None:
    # Steps 0-12 until 1.2 s; the fault at 1.25 s; from 2.0 s on again from step 10.
    steps = history(OLD, 2, 0, 0.0, 13) + history(NEW, 2, 10, 2.0, 10)
    cost = cost_of(steps, 1.25, 2, until=2.95)
    assert cost.full_strength == pytest.approx(0.75)
    assert cost.stall == pytest.approx(2.3 - 1.25)  # step 13 is the first that is new
    assert cost.lost_steps == 3
    assert (cost.rounds, cost.stale_steps) == (1, 0)


def test_a_step_in_flight_counts_as_progress_but_not_as_recovery() -> None:
    steps = [*history(OLD, 2, 0, 0.0, 13), Step(1.3, 13, OLD, 2, 1)]
    assert figures(steps, 1.25, 2, until=9.0) is None
    cost = cost_of([*steps, *history(NEW, 2, 10, 2.0, 10)], 1.25, 2, until=2.95)
    assert cost.stall == pytest.approx(2.4 - 1.3)
    assert cost.lost_steps == 4


def test_back_only_with_the_full_world() -> None:
    alone = history(OLD, 3, 0, 0.0, 13) + history(NEW, 1, 13, 1.5, 5)
    assert figures(alone, 1.25, 3, until=2.0) is None
    assert not settled(alone, 1.25, 3, enough=1)
    whole = alone + history(NEWER, 3, 16, 3.0, 5)
    cost = cost_of(whole, 1.25, 3, until=3.45)
    assert cost.full_strength == pytest.approx(1.75)
    assert cost.stall == pytest.approx(3.2 - 1.9)
    assert (cost.lost_steps, cost.rounds) == (2, 2)


def test_the_longest_of_several_gaps_counts_and_so_does_the_last() -> None:
    steps = (
        history(OLD, 2, 0, 0.0, 11) + history(NEW, 2, 11, 1.5, 3) + history(NEWER, 2, 14, 4.0, 3)
    )
    cost = cost_of(steps, 1.05, 2, until=4.3)
    assert cost.stall == pytest.approx(4.0 - 1.7)
    assert cost_of(steps, 1.05, 2, until=14.2).stall == pytest.approx(10.0), "it hangs"


def test_redoing_old_steps_is_not_being_back() -> None:
    steps = history(OLD, 2, 0, 0.0, 13) + history(NEW, 2, 10, 2.0, 3)
    assert figures(steps, 1.25, 2, until=2.3) is None


def test_two_groups_on_one_job_are_seen() -> None:
    steps = history(OLD, 2, 0, 0.0, 30) + history(NEW, 2, 10, 2.05, 30)
    cost = cost_of(steps, 1.25, 2, until=5.0)
    assert cost.stale_steps == 2 * 9  # both ranks, from 2.1 s to 2.9 s


def test_settled_counts_new_steps_of_the_new_world_only() -> None:
    steps = history(OLD, 2, 0, 0.0, 13) + history(NEW, 3, 10, 2.0, 5)
    assert settled(steps, 1.25, 3, enough=2)
    assert not settled(steps, 1.25, 3, enough=3)
    assert not settled(steps, 1.25, 2, enough=1)


def test_quantile_is_the_nearest_rank() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
    assert quantile(list(range(1, 41)), 0.95) == 38
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_seed_draws_the_same_trials_and_all_contenders_get_the_same() -> None:
    names = [(name, None) for name in CONTENDERS]
    trials = plan(4, names, ["worker-kill", "join"], [2, 3], seed=7)
    assert trials == plan(4, names, ["worker-kill", "join"], [2, 3], seed=7)
    assert trials != plan(4, names, ["worker-kill", "join"], [2, 3], seed=8)
    assert len(trials) == 4 * 2 * 2 * len(names)
    draws = {(t.index, t.fault, t.nodes, t.victim, t.after) for t in trials}
    assert len(draws) == 4 * 2 * 2


def test_a_contender_may_have_repetitions_of_its_own() -> None:
    trials = plan(5, [("torchrun", 1), ("elastic-etcd", None)], ["join"], [2], seed=1)
    counts = [sum(t.contender == name for t in trials) for name in ("torchrun", "elastic-etcd")]
    assert counts == [1, 5]


def test_step_times_do_not_cross_rounds_or_ranks() -> None:
    steps = history(OLD, 2, 0, 0.0, 3) + history(NEW, 1, 3, 9.0, 2)
    assert step_times(steps) == pytest.approx([0.1] * 5)


def test_eight_workers_are_measured_on_one_node_and_the_floor_where_a_worker_is_killed() -> None:
    faults = ["worker-kill", "worker-kill-of-8", "join"]
    trials = plan(2, [("in-place-etcd", None), (FLOOR, None)], faults, [2, 3], seed=7)
    made = {(t.contender, t.fault, t.nodes) for t in trials}
    of_workers = {("worker-kill", 2), ("worker-kill", 3), ("worker-kill-of-8", 1)}
    assert made == {
        *((FLOOR, *one) for one in of_workers),
        *(("in-place-etcd", *one) for one in {*of_workers, ("join", 2), ("join", 3)}),
    }


def test_what_has_no_way_back_to_the_full_world_shows_a_dash() -> None:
    trial = Trial(FLOOR, 2, "worker-kill", "last", 20, 0)
    result = Result(trial, "back", Figures(0.019, None, 0, 1, 0))
    row = next(row for row in table([result]).splitlines() if FLOOR in row)
    assert row.split() == [
        *("worker-kill", "2", FLOOR, "1/1"),
        *("0.019", "0.019", "-", "-", "0", "0"),
    ]


# The table of the checkpoint benchmark, on figures made by hand


def line(row: str, **values: float) -> str:
    """The line of one row, with a figure for each contender."""
    samples = [Sample(row, name.replace("_", "."), [value]) for name, value in values.items()]
    shown = checkpoints.table([checkpoints.Run(Size(1 << 30, 1), samples)])
    (found,) = shown.splitlines()[1:]
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
    shown = checkpoints.table([checkpoints.Run(Size(200 << 20, 2), samples)])
    assert "200 MiB     2   200.0 ms   200.0 ms          -" in shown


# The replay of an epoch counts what it says


def test_samples_are_counted() -> None:
    assert Count.of("x", [0, 1, 1, 1, 4], size=6) == Count("x", repeated=2, never=3)


def test_ours_sees_each_sample_once_and_the_others_do_not() -> None:
    replay = Replay(size=1009, batch=8, worlds=(4, 3, 2, 4), steps=6, seed=1)
    assert sorted(elastic(replay)) == list(range(1009))
    first, second, ours = compare(replay)
    assert (first.repeated > 400, first.never) == (True, 0)
    assert second.never > 200
    assert (ours.repeated, ours.never) == (0, 0)


def test_without_changes_only_padding_is_repeated() -> None:
    replay = Replay(size=1009, batch=8, worlds=(4,), steps=6, seed=1)
    for run in (restarted, skipping):
        assert Count.of("", run(replay), 1009) == Count("", repeated=3, never=0)
