"""What an agent measures, by tables of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.metrics.metrics_fold import (
    PHASES,
    Histogram,
    Measured,
    fold,
)
from elastic_runtime.agent.metrics.prometheus_text import render
from elastic_runtime.events.checkpoint_events import (
    CheckpointCommitted,
    CheckpointSaved,
    CheckpointSaveFailed,
)
from elastic_runtime.events.job_events import JobDone, JobFailed
from elastic_runtime.events.round_events import (
    RESTART_CLASSES,
    RegroupChosen,
    RoundEntered,
    RoundRecovered,
    RoundSealed,
)
from elastic_runtime.events.snapshot_events import SnapshotTaken
from elastic_runtime.events.store_events import StoreLost
from elastic_runtime.limits import HISTOGRAM_BOUNDS
from elastic_runtime.protocol.round_records import Budget
from tests.unit.agent.metrics.measured import (
    BEGUN,
    KILLED,
    Told,
    interrupted,
    left,
    recovered,
    resumed,
    sealed,
    told,
    turned,
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


def test_before_the_first_round_nothing_is_known() -> None:
    state = Measured(100.0)
    assert state.status("r", "n", 120.0) == {
        "run_id": "r",
        "node": "n",
        "round": 0,
        "world": 0,
        "nodes": 0,
        "step": -1,
        "checkpoint_step": -1,
        "ready": False,
        "restarts": {"failed": 0, "killed": 0, "lost": 0, "planned": 0},
    }
    assert state.goodput(200.0) is None


def test_a_round_is_what_the_status_says() -> None:
    state = told(sealed(105, 7, killed=2, lost=1), turned(110, 30, 3))
    status = state.status("r", "n", 120.0)
    assert (status["round"], status["world"], status["step"]) == (7, 4, 30)
    assert status["ready"]
    assert status["restarts"] == {"failed": 0, "killed": 2, "lost": 1, "planned": 0}


def test_the_status_says_what_share_of_the_time_counted() -> None:
    state = told(sealed(105, 7), turned(110, 30, 3), turned(115, 60, 33))
    assert state.status("r", "n", 120.0)["goodput"] == round(state.goodput(120.0) or 0.0, 3) > 0
    assert "goodput" not in told(sealed(105, 7)).status("r", "n", 120.0)


def test_the_last_fault_is_why_the_last_round_broke() -> None:
    def begun(at: float, number: int, why: str, **restarts: int) -> Told:
        counts = {"failed": 0, "killed": 0, "lost": 0, "planned": 0, **restarts}
        return (at, RoundSealed(number, workers=4, nodes=2, reason=why, restarts=counts))

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


def test_nothing_was_detected_where_the_end_was_planned() -> None:
    events = (interrupted(121, 11, 11, 120), left(122), sealed(123, 2, planned=1))
    state = told(*BEGUN, *events, recovered(130, 2, 12))
    assert {phase for phase, _ in state.recovery} == {"rendezvous", "first_step"}


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
def test_whatever_happens_goodput_is_a_share_and_counters_only_grow(
    story: list[tuple[str, int, Any]],
) -> None:
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


# ---------------------------------------------------------------- checkpoints, health, text


def test_every_node_knows_of_the_last_checkpoint() -> None:
    state = told(*BEGUN, (121.0, CheckpointCommitted(10)))
    assert state.checkpoint_step == 10
    assert state.checkpoint_bytes is None


def test_checkpoints_and_snapshots() -> None:
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
