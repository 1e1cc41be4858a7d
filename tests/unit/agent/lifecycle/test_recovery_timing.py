"""From when a recovery counts, where troubles come fast."""

from __future__ import annotations

from elastic_runtime.agent.lifecycle.recovery_timing import Trouble, Troubles


def _in(number: int, at: float) -> Trouble:
    return Trouble(number, at, at - 0.5)


def test_a_recovery_counts_from_the_first_sign() -> None:
    troubles = Troubles().seen(_in(1, 10.0)).seen(_in(1, 11.0), ordered=True)
    assert troubles.over(2, 12.0) == (_in(1, 10.0), Troubles())


def test_a_replacement_that_is_ready_before_the_first_step_is_a_recovery_of_its_own() -> None:
    troubles = Troubles().seen(_in(1, 10.0)).seen(_in(2, 10.3), ordered=True)
    over, troubles = troubles.over(2, 12.0)
    assert over == _in(1, 10.0)
    assert troubles.over(3, 13.0) == (Trouble(2, 12.0, 12.0), Troubles())


def test_a_round_that_makes_no_step_is_part_of_the_recovery() -> None:
    troubles = Troubles().seen(_in(1, 10.0)).seen(_in(2, 10.3), ordered=True)
    assert troubles.over(3, 13.0) == (_in(1, 10.0), Troubles())


def test_a_late_echo_of_the_round_before_is_no_new_trouble() -> None:
    troubles = Troubles().seen(_in(1, 10.0)).seen(_in(2, 10.3))
    assert troubles.over(2, 12.0) == (_in(1, 10.0), Troubles())


def test_the_first_step_of_another_worker_does_not_end_what_has_come_since() -> None:
    troubles = Troubles().seen(_in(2, 10.0), ordered=True)
    assert troubles.over(2, 12.0) == (None, troubles)
    assert troubles.over(3, 13.0) == (_in(2, 10.0), Troubles())
