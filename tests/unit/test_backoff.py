"""Pauses that double."""

from __future__ import annotations

from elastic_runtime.backoff import Backoff

PAUSES = Backoff(first=0.5, longest=4.0)


def test_pauses_double_from_the_first_to_the_longest() -> None:
    assert [PAUSES.pause(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 4.0, 4.0]


def test_however_often_it_fails_the_pause_can_be_said() -> None:
    assert PAUSES.pause(10**6) == 4.0


def test_nothing_has_failed_is_as_the_first_failure() -> None:
    assert PAUSES.pause(0) == 0.5
