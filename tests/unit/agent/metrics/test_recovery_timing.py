"""From when a recovery counts, where one interruption follows another."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.metrics.recovery_timing import (
    Interruption,
    RecoveryTimer,
    step_before_round,
)
from elastic_runtime.protocol.round_records import Budget


def _in(number: int, at: float) -> Interruption:
    return Interruption(number, at, at - 0.5)


def test_a_recovery_counts_from_the_first_sign() -> None:
    timer = RecoveryTimer().noticed(_in(1, 10.0)).noticed(_in(1, 11.0), ordered=True)
    assert timer.first_step(2, 12.0) == (_in(1, 10.0), RecoveryTimer())


def test_a_replacement_that_is_ready_before_the_first_step_is_a_recovery_of_its_own() -> None:
    timer = RecoveryTimer().noticed(_in(1, 10.0)).noticed(_in(2, 10.3), ordered=True)
    over, timer = timer.first_step(2, 12.0)
    assert over == _in(1, 10.0)
    assert timer.first_step(3, 13.0) == (Interruption(2, 12.0, 12.0), RecoveryTimer())


def test_a_round_that_makes_no_step_is_part_of_the_recovery() -> None:
    timer = RecoveryTimer().noticed(_in(1, 10.0)).noticed(_in(2, 10.3), ordered=True)
    assert timer.first_step(3, 13.0) == (_in(1, 10.0), RecoveryTimer())


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
def test_what_a_round_makes_again_is_counted_from_the_round_before(
    left_at: int, reached: int
) -> None:
    assert step_before_round(left_at, Budget(best_step=91)) == reached
