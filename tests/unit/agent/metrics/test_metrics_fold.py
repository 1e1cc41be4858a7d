"""What an agent measures, by tables of events, and what Prometheus is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from elastic_runtime.agent.metrics.metrics_fold import (
    PHASES,
    Histogram,
    LoopTurned,
    Measured,
    RecoveryBegan,
    WorkerProgress,
    fold,
)
from elastic_runtime.agent.metrics.prometheus_text import render
from elastic_runtime.agent.metrics.recovery_timing import (
    Interruption,
    RecoveryTimer,
    step_before_round,
)
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
from elastic_runtime.events.store_events import StoreLost
from elastic_runtime.limits import HISTOGRAM_BOUNDS
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


def test_the_last_word_says_what_the_faults_have_cost() -> None:
    known = (130.0, RoundRecovered(2, 0.3, step=6, stalled=10.0))
    state = told(*KILLED[:-1], known, turned(140, 16, 11))
    assert state.summary(140) == {
        "restarts": Budget().restarts | {"killed": 1},
        "lost_steps": 6,
        "stalled": 10.0,
        "goodput": round(state.goodput(140) or 0.0, 3),
    }
    assert "goodput" not in told(sealed(105, 1)).summary(140), "the script reports no steps"


# ---------------------------------------------------------------- rounds


BEFORE: dict[str, Any] = {
    "run_id": "r",
    "node": "n",
    "round": 0,
    "world": 0,
    "nodes": 0,
    "step": -1,
    "checkpoint_step": -1,
    "ready": False,
    "restarts": Budget().restarts,
}


def test_before_the_first_round_nothing_is_known() -> None:
    state = Measured(100.0)
    assert state.status("r", "n", 120.0) == BEFORE
    assert state.goodput(200.0) is None


def test_a_round_is_what_the_status_says() -> None:
    state = told(sealed(105, 7, killed=2, lost=1))
    restarts = {"failed": 0, "killed": 2, "lost": 1, "planned": 0}
    known = {"round": 7, "world": 4, "nodes": 2, "ready": True, "restarts": restarts}
    assert state.status("r", "n", 120.0) == BEFORE | known
    state = told(turned(110, 30, 3), turned(115, 60, 33), state=state)
    goodput = round(state.goodput(120.0) or 0.0, 3)
    assert goodput > 0
    known |= {"step": 60, "goodput": goodput}
    assert state.status("r", "n", 120.0) == BEFORE | known


def test_the_last_fault_is_why_the_last_round_broke() -> None:
    def begun(at: float, number: int, why: str, **restarts: int) -> Told:
        _, event = sealed(at, number, **restarts)
        return at, replace(event, reason=why)

    first = begun(105, 3, "node b is lost", lost=1)  # before this node was there
    assert "fault" not in told(first).status("r", "n", 120.0)
    broke = begun(106, 4, "worker 1 was killed", lost=1, killed=1)
    assert told(first, broke).status("r", "n", 120.0)["fault"] == "worker 1 was killed"
    grew = begun(107, 5, "node c joins", lost=1, killed=1, planned=1)
    assert told(first, broke, grew).status("r", "n", 120.0)["fault"] == "worker 1 was killed"


def test_the_status_says_how_ranks_regroup_where_this_node_knows() -> None:
    assert "regroup" not in told(sealed(105, 1)).status("r", "n", 120.0)
    chosen = told(sealed(105, 1), (106.0, RegroupChosen("rebuild", "2.13.0")))
    assert chosen.status("r", "n", 120.0)["regroup"] == "rebuild"


@pytest.mark.parametrize("last", [left(111), (111.0, JobDone(1.0)), (111.0, JobFailed(1.0))])
def test_a_node_that_has_left_its_round_is_not_ready(last: Told) -> None:
    assert told(*BEGUN).ready
    assert not told(*BEGUN, last).ready
    assert told(*BEGUN, last).round == 1


def test_an_event_of_no_interest_changes_nothing() -> None:
    state = told(*BEGUN)
    assert fold(state, StoreLost("x"), 200.0) is state


# ---------------------------------------------------------------- recovery


def test_the_phases_of_a_recovery_follow_each_other() -> None:
    state = told(*KILLED)
    assert set(state.recovery) == {(phase, "killed") for phase in PHASES}
    seconds = {phase: one.total for (phase, _), one in state.recovery.items()}
    assert seconds == {"detect": 1, "rendezvous": 2, "start": 1, "restore": 2, "first_step": 4}


@pytest.mark.parametrize(
    ("restarts", "expected"),
    [
        ({"killed": 1}, "killed"),
        ({"lost": 1}, "lost"),
        ({"failed": 1, "killed": 1}, "failed"),
        ({"planned": 1}, "planned"),
        ({}, "planned"),  # it came back to a round that had cost it nothing
    ],
)
def test_a_recovery_is_of_the_class_that_has_grown(restarts: dict[str, int], expected: str) -> None:
    events = (interrupted(121, 11, 11, 120), left(122), sealed(123, 2, **restarts))
    state = told(*BEGUN, *events, recovered(130, 2, 12))
    assert {name for _, name in state.recovery} == {expected}
    detected = "detect" in {phase for phase, _ in state.recovery}
    assert detected == (expected != "planned"), "nothing is to be detected of a planned end"


def test_in_place_the_state_is_restored_when_all_ranks_have_it() -> None:
    events = (
        interrupted(121, 11, 11, 120),
        left(121),
        sealed(122, 2, killed=1),
        resumed(122.5, 2, 5, seconds=0.25),  # a part of what comes next
        (124.0, RoundEntered(0.5, 1.5, rank=0, round=2)),
        recovered(125, 2, 12),
    )
    seconds = {phase: one.total for (phase, _), one in told(*BEGUN, *events).recovery.items()}
    assert seconds == {"detect": 1, "rendezvous": 1, "start": 0.5, "restore": 1.5, "first_step": 1}


def test_a_round_that_breaks_before_its_first_step_belongs_to_the_same_recovery() -> None:
    broken = (interrupted(121, 11, 11, 120), left(121), sealed(122, 2, killed=1), left(123))
    state = told(*BEGUN, *broken, sealed(126, 3, killed=2), recovered(127, 3, 12))
    assert state.recovery["rendezvous", "killed"] == Histogram().with_(5.0)
    assert state.recovery["first_step", "killed"] == Histogram().with_(1.0)


def test_what_an_older_round_says_late_is_not_counted() -> None:
    events = (
        interrupted(121, 11, 11, 120),
        sealed(122, 2, killed=1),
        resumed(123, 1, 5, seconds=0.5),
    )
    state = told(*BEGUN, *events, recovered(125, 2, 12))
    assert "restore" not in {phase for phase, _ in state.recovery}


def test_one_node_tells_of_a_recovery_and_all_of_lost_steps() -> None:
    others = tuple(
        (now, replace(event, group_rank=1) if isinstance(event, RoundSealed) else event)
        for now, event in KILLED
    )
    state = told(*others)
    assert state.recovery == {}
    assert state.lost == told(*KILLED).lost == 6


# ---------------------------------------------------------------- steps


def test_steps_are_counted_and_timed_from_the_first_one_of_a_round() -> None:
    state = told(sealed(105, 1), turned(110, 501, 1), turned(111, 503, 3), turned(113, 510, 10))
    assert (state.step, state.steps, state.training) == (510, 10, 3.0)


def test_a_turn_without_a_step_changes_the_turn_alone() -> None:
    state = told(*BEGUN)
    assert told(turned(125, 11, 11, moment=120), state=state) == replace(state, turned=125)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((left(121), turned(122, 12, 12)), "in no round"),
        ((left(121), sealed(123, 2), turned(124, 11, 11, moment=122)), "of the round before"),
    ],
)
def test_steps_outside_of_the_round_are_none(events: tuple[Told, ...], why: str) -> None:
    assert told(*BEGUN, *events).steps == told(*BEGUN).steps, why


def test_workers_that_count_differently_are_counted_once() -> None:
    # Each has made a step that the other has not published yet.
    state = told(sealed(105, 1), turned(110, 5, 5), turned(111, 5, 4), turned(112, 6, 6))
    assert state.steps == 6


@pytest.mark.parametrize(("first", "lost"), [(6, 6), (11, 1), (12, 0), (13, 0), (-1, 0)])
def test_steps_are_lost_that_are_made_again(first: int, lost: int) -> None:
    events = (interrupted(121, 11, 11, 120), left(121), sealed(123, 2, killed=1))
    state = told(*BEGUN, *events, turned(129, first, 1), recovered(130, 2, first))
    assert state.lost == lost


def test_a_second_fault_loses_what_was_made_since_the_first() -> None:
    again = (turned(131, 6, 1), turned(135, 8, 3), interrupted(136, 8, 3, 135), left(136))
    state = told(*KILLED, *again, sealed(137, 3, killed=2), recovered(140, 3, 6))
    assert state.lost == 6 + 3


# ---------------------------------------------------------------- goodput


def test_goodput_is_the_time_of_steps_that_count() -> None:
    # Ten of twenty seconds, and all steps still count.
    assert told(*BEGUN).goodput(120.0) == pytest.approx(10 / 20)
    # Another nine seconds with ten steps; of all 21, six were made twice.
    state = told(*KILLED, turned(131, 6, 1), turned(140, 15, 10))
    assert state.goodput(140.0) == pytest.approx(19 * (1 - 6 / 21) / 40)


def test_goodput_falls_while_nothing_moves() -> None:
    state = told(*BEGUN)
    assert [state.goodput(at) for at in (140.0, 200.0)] == pytest.approx([0.25, 0.1])


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda n, k: ("seal", n, k), st.integers(0, 3), st.sampled_from(RESTART_CLASSES)
            ),
            st.builds(lambda n, k: ("step", n, k), st.integers(1, 9), st.integers(0, 9)),
            st.builds(lambda n, k: ("interrupted", n, k), st.just(0), st.just(0)),
            st.builds(lambda n, k: ("recovered", n, k), st.integers(-1, 30), st.just(0)),
        ),
        max_size=30,
    )
)
def test_goodput_is_a_share_and_counters_grow_always(story: list[tuple[str, int, Any]]) -> None:
    state, now, number, step, count = Measured(0.0), 1.0, 0, 0, 0
    restarts = dict.fromkeys(RESTART_CLASSES, 0)
    for what, amount, more in story:
        before, now = state, now + 1.0
        if what == "seal":
            number, count = number + 1, 0
            restarts = {**restarts, more: restarts[more] + 1}
            state = told(left(now), sealed(now, number, rank=amount % 2, **restarts), state=state)
        elif what == "step":
            step, count = max(0, step + amount - more), count + amount
            state = told(turned(now, step, count), state=state)
        elif what == "interrupted":
            state = told(interrupted(now, step, count, now), state=state)
        else:
            state = told(recovered(now, number, amount), state=state)
        assert state.steps >= before.steps
        assert state.lost >= before.lost
        assert state.training >= before.training
        goodput = state.goodput(now)
        assert goodput is None or 0.0 <= goodput <= 1.0
        assert all(one.total >= 0 for one in state.recovery.values())
        render(state, "r", "n", now)


# ---------------------------------------------------------------- checkpoints, health


def test_checkpoints_and_snapshots() -> None:
    state = told(*BEGUN, (121.0, CheckpointCommitted(10)))
    assert (state.checkpoint_step, state.checkpoint_bytes) == (10, None), "another node's"
    state = told(
        resumed(101, 1, 40, seconds=1),
        (102, CheckpointSaved("x", step=50, bytes=1000, seconds=0.5)),
        (103, CheckpointSaved("x", step=60, bytes=3000, seconds=1.5)),
        (104, CheckpointSaveFailed("x", step=70, problem="full")),
        (105, SnapshotTaken("x", step=65, bytes=700, seconds=0.1, copied=True)),
        resumed(106, 2, 65, seconds=1, source="memory"),
    )
    assert (state.checkpoint_step, state.checkpoint_bytes, state.saved_bytes) == (60, 3000, 4000)
    assert (state.saving.total, sum(state.saving.counts), state.saves_failed) == (2.0, 2, 1)
    assert (state.snapshot_step, state.snapshot_bytes) == (65, 700)


@pytest.mark.parametrize(
    ("events", "now", "hangs"),
    [
        ((), 10_000.0, False),  # it may take long to import torch
        ((turned(110, -1, 0, 0.0),), 169.0, False),
        ((turned(110, -1, 0, 0.0),), 171.0, True),
        ((turned(110, -1, 0, 0.0), (111.0, JobDone(1.0))), 500.0, False),
    ],
)
def test_an_agent_hangs_whose_loop_has_stopped(
    events: tuple[Told, ...], now: float, hangs: bool
) -> None:
    assert (told(*events).hangs(now) is not None) is hangs


def test_a_histogram_counts_by_upper_bounds() -> None:
    seen = Histogram()
    for seconds in (0.01, 0.02, 1e9):
        seen = seen.with_(seconds)
    assert seen.counts == (1, 1, *(0 for _ in HISTOGRAM_BOUNDS[2:]), 1)


# ---------------------------------------------------------------- Prometheus


def test_prometheus_reads_what_is_rendered() -> None:
    state = told(*KILLED, turned(131, 6, 1), turned(140, 15, 10))
    text = render(state, 'a "run"', "n\\1", 140.0).decode()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["elastic_agent_info", ("node", "n\\1"), ("run_id", 'a "run"')] == 1
    assert samples["elastic_world_size",] == 4
    assert samples["elastic_nodes",] == 2
    assert samples["elastic_restarts_total", ("class", "killed")] == 1
    assert samples["elastic_restarts_total", ("class", "lost")] == 0
    restore = ("class", "killed"), ("phase", "restore")
    assert samples["elastic_recovery_seconds_sum", *restore] == 2
    bucket = "elastic_recovery_seconds_bucket"
    assert samples[bucket, restore[0], ("le", "1.0"), restore[1]] == 0
    assert samples[bucket, restore[0], ("le", "3.0"), restore[1]] == 1
    assert samples[bucket, restore[0], ("le", "+Inf"), restore[1]] == 1
    assert samples["elastic_step",] == 15
    assert samples["elastic_lost_steps_total",] == 6
    assert samples["elastic_goodput_ratio",] == pytest.approx(state.goodput(140.0))
    assert samples["elastic_checkpoint_step",] == 5
    assert ("elastic_snapshot_size_bytes",) not in samples
    assert ("elastic_snapshot_step",) not in samples


def test_a_script_that_reports_no_steps_has_no_step() -> None:
    text = render(told(sealed(105, 1)), "r", "n", 110.0).decode()
    assert "\nelastic_step " not in text
    assert "\nelastic_goodput_ratio " not in text
    assert "\nelastic_round 1.0\n" in text


# ---------------------------------------------------------------- one interruption after another


def _in(number: int, at: float) -> Interruption:
    return Interruption(number, at, at - 0.5)


def test_a_recovery_counts_from_the_first_sign() -> None:
    timer = RecoveryTimer().noticed(_in(1, 10.0)).noticed(_in(1, 11.0), ordered=True)
    assert timer.first_step(2, 12.0) == (_in(1, 10.0), RecoveryTimer())


def test_a_replacement_that_is_ready_before_the_first_step_is_a_recovery_of_its_own() -> None:
    both = RecoveryTimer().noticed(_in(1, 10.0)).noticed(_in(2, 10.3), ordered=True)
    over, timer = both.first_step(2, 12.0)
    assert over == _in(1, 10.0)
    assert timer.first_step(3, 13.0) == (Interruption(2, 12.0, 12.0), RecoveryTimer())
    no_step_in_2 = both.first_step(3, 13.0)
    assert no_step_in_2 == (_in(1, 10.0), RecoveryTimer()), "that round is part of the first one"


def test_nothing_stands_still_while_steps_are_made_in_the_round_that_is_to_end() -> None:
    timer = RecoveryTimer().noticed(_in(1, 10.0), ordered=True)
    assert timer.left(9.5) == timer
    assert timer.left(40.0).first_step(2, 40.2)[0] == Interruption(1, 40.0, 40.0)
    assert RecoveryTimer().left(40.0) == RecoveryTimer()


def test_a_late_echo_of_the_round_before_is_no_new_trouble() -> None:
    timer = RecoveryTimer().noticed(_in(1, 10.0)).noticed(_in(2, 10.3))
    assert timer.first_step(2, 12.0) == (_in(1, 10.0), RecoveryTimer())


def test_the_first_step_of_another_worker_does_not_end_what_has_come_since() -> None:
    timer = RecoveryTimer().noticed(_in(2, 10.0), ordered=True)
    assert timer.first_step(2, 12.0) == (None, timer)
    assert timer.first_step(3, 13.0) == (_in(2, 10.0), RecoveryTimer())


@pytest.mark.parametrize(("left_at", "reached"), [(71, 71), (0, 0), (-1, 91)])
def test_what_is_made_again_counts_from_the_round_before(left_at: int, reached: int) -> None:
    assert step_before_round(left_at, Budget(best_step=91)) == reached
