"""When a round counts as hanging, as tables of looks at the workers."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.lifecycle.hang_detection import HangClock, StepProgress

LIMIT = 6.0


class Watch:
    """Shows a clock what workers do, and looks four times a second as an agent does."""

    def __init__(self, step: float = 1.0) -> None:
        self.clock = HangClock(LIMIT)
        self.now = 1000.0
        self.round = 0
        self.progress = StepProgress()
        self.overdue: list[float] = []
        self.enter()
        self.steps(3, step)

    def look(self) -> None:
        self.clock = self.clock.after(self.progress, self.round, self.now)
        if self.clock.overdue(self.now):
            self.overdue.append(self.now)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.25)
            self.look()

    def enter(self) -> None:
        self.round += 1
        self.progress = StepProgress(
            self.progress.count, self.progress.moment, self.now, in_train=True
        )
        self.look()

    def leave(self) -> None:
        self.progress = StepProgress(self.progress.count, self.progress.moment)
        self.look()

    def steps(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.wait(seconds)
            fresh = (self.progress.expected or 0.0) > self.progress.moment
            self.progress = StepProgress(
                1 if fresh else self.progress.count + 1, self.now, self.progress.expected
            )
        self.look()


def test_time_outside_of_a_round_never_counts() -> None:
    watch = Watch()
    watch.leave()
    watch.wait(100 * LIMIT)
    watch.enter()
    assert watch.clock.step_seconds(watch.now) == 0.0
    watch.steps(3, 1.0)
    assert not watch.overdue


def test_a_step_is_overdue_after_the_limit_also_the_first_one_of_a_round() -> None:
    watch = Watch()
    watch.wait(LIMIT + 1.0)
    assert watch.overdue
    watch.leave()
    watch.wait(50.0)
    watch.overdue.clear()
    watch.enter()
    watch.wait(LIMIT)
    assert not watch.overdue
    watch.wait(1.0)
    assert watch.overdue
    assert watch.clock.step_seconds(watch.now) == LIMIT + 1.0


def test_before_the_first_step_of_all_nothing_is_known() -> None:
    clock = HangClock(LIMIT).after(StepProgress(expected=1000.0), 1, 1000.0)
    assert not clock.overdue(5000.0)
    assert not HangClock(0.0).after(StepProgress(1, 2000.0, 1000.0), 1, 2000.0).overdue(5000.0)


def test_it_is_known_how_long_train_has_gone_on_without_any_step() -> None:
    watch = Watch()
    assert watch.clock.first_step_seconds(watch.now + 100) == 0.0
    watch.clock = HangClock(LIMIT)
    assert watch.clock.first_step_seconds(watch.now) == 0.0, "nobody is in train"
    watch.enter()
    watch.wait(61.0)
    assert watch.clock.first_step_seconds(watch.now) == 61.0
    watch.leave()
    assert watch.clock.first_step_seconds(watch.now) == 0.0


def test_the_first_step_of_a_round_may_take_as_long_as_the_first_of_all_did() -> None:
    watch = Watch()
    slow = HangClock(LIMIT).after(StepProgress(expected=1000.0), 1, 1000.0)
    slow = slow.after(StepProgress(1, 1020.0, 1000.0), 1, 1020.0)  # it compiles
    slow = slow.after(StepProgress(2, 1021.0, 1000.0), 1, 1021.0)
    assert slow.limit == LIMIT
    slow = slow.after(StepProgress(2, 1021.0, 1030.0), 2, 1030.0)
    assert slow.limit == 60.0
    assert slow.after(StepProgress(1, 1050.0, 1030.0), 2, 1050.0).limit == LIMIT
    assert watch.clock.limit == LIMIT


@pytest.mark.parametrize("stall", [5.0, 5.9, 7.0, 30.0])
def test_a_stall_that_heals_does_not_stretch_the_limit(stall: float) -> None:
    watch = Watch()
    for _ in range(3):
        watch.steps(1, stall)
        watch.steps(4, 1.0)
        assert watch.clock.limit == LIMIT
    watch.overdue.clear()
    watch.wait(LIMIT + 0.5)
    assert watch.overdue


def test_steps_that_are_always_long_stretch_the_limit() -> None:
    watch = Watch(step=5.0)
    assert watch.clock.limit == 15.0
    watch.steps(3, 14.0)
    assert not watch.overdue


def test_to_be_busy_stretches_nothing_and_is_never_overdue() -> None:
    watch = Watch()
    for _ in range(20):
        watch.wait(0.5)
        watch.leave()
        watch.wait(60.0)
        watch.progress = StepProgress(watch.progress.count, watch.progress.moment, watch.now)
        watch.steps(1, 1.0)
    assert watch.clock.limit == LIMIT
    assert not watch.overdue


def test_how_long_a_worker_is_busy_is_known_over_rounds_and_until_it_ends() -> None:
    clock = HangClock(LIMIT).after(StepProgress(busy=True), 1, 10.0)
    clock = clock.after(StepProgress(expected=12.0, busy=True), 2, 12.0)
    assert clock.busy_seconds(15.0) == 5.0
    clock = clock.after(StepProgress(expected=16.0), 2, 16.0)
    assert clock.busy_seconds(20.0) == 0.0
    assert clock.after(StepProgress(busy=True), 2, 21.0).busy_seconds(22.0) == 1.0


def test_many_steps_between_two_looks_are_measured_by_their_number() -> None:
    clock = HangClock(LIMIT).after(StepProgress(expected=10.0), 1, 10.0)
    clock = clock.after(StepProgress(1, 11.0, 10.0), 1, 11.0)
    clock = clock.after(StepProgress(11, 41.0, 10.0), 1, 41.0)
    assert clock.steps == (3.0,)


def test_the_way_into_train_is_measured_in_each_round_and_not_beyond() -> None:
    watch = Watch()
    watch.wait(100.0)
    assert watch.clock.entering_seconds(watch.now) == 0.0
    watch.leave()
    watch.wait(10.0)
    assert watch.clock.entering_seconds(watch.now) == 0.0, "evaluation is on no way"
    watch.round += 1
    watch.look()
    watch.wait(70.0)
    assert watch.clock.entering_seconds(watch.now) == 70.0
    watch.progress = StepProgress(watch.progress.count, watch.progress.moment, in_train=True)
    watch.look()
    assert watch.clock.entering_seconds(watch.now) == 0.0, "busy with the first thing in train"
