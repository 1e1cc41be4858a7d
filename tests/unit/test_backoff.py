"""Pauses that grow."""

from __future__ import annotations

from elastic_runtime.backoff import Backoff

PAUSES = Backoff(first=0.5, longest=4.0)


def test_pauses_double_from_the_first_to_the_longest() -> None:
    assert [PAUSES.pause(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 4.0, 4.0]


def test_pauses_may_grow_by_another_factor() -> None:
    assert Backoff(first=1.0, longest=50.0, factor=3.0).pauses(5) == (1.0, 3.0, 9.0, 27.0, 50.0)


def test_a_random_pause_is_a_half_of_it_at_least() -> None:
    assert all(1.0 <= PAUSES.random_pause(3) <= 2.0 for _ in range(100))


def test_however_often_it_fails_the_pause_can_be_said() -> None:
    assert PAUSES.pause(10**6) == 4.0


def test_nothing_has_failed_is_as_the_first_failure() -> None:
    assert PAUSES.pause(0) == 0.5
