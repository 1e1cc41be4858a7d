"""Durations as people write them, pauses that grow, and clocks."""

from __future__ import annotations

import pytest

from elastic_runtime.backoff import Backoff
from elastic_runtime.clock import ManualClock, MonotonicClock
from elastic_runtime.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("30 sec", 30.0),
        (" 1.5H ", 5400.0),
        ("10m", 600.0),
        ("10min", 600.0),
        (".5h", 1800.0),
        ("7d", 604800.0),
        ("0s", 0.0),
    ],
)
def test_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_number_alone_has_the_unit_of_who_asks() -> None:
    assert parse_duration("2", unit="s") == 2.0
    assert parse_duration("2", unit="m") == 120.0
    with pytest.raises(ValueError, match="2"):
        parse_duration("2")


@pytest.mark.parametrize("text", ["", "s", "-1s", "1w", "1 h 30", "1e3s", "nan", "9" * 400 + "s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (30, "30 s"), (90, "1.5 min"), (7200, "2 h"), (604800, "7 d"), (0, "0 s")],
)
def test_the_text_of_a_duration_is_exact(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


PAUSES = Backoff(first=0.5, longest=4.0)


def test_pauses_double_from_the_first_to_the_longest_however_often_it_fails() -> None:
    """Nothing has failed is as the first failure."""
    tries = 0, 1, 2, 3, 4, 5, 10**6
    assert [PAUSES.pause(failures) for failures in tries] == [0.5, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_pauses_may_grow_by_another_factor() -> None:
    assert Backoff(first=1.0, longest=50.0, factor=3.0).pauses(5) == (1.0, 3.0, 9.0, 27.0, 50.0)


def test_a_random_pause_is_a_half_of_it_at_least() -> None:
    assert all(1.0 <= PAUSES.random_pause(3) <= 2.0 for _ in range(100))


def test_no_clock_goes_back() -> None:
    with pytest.raises(ValueError, match=r"cannot go back by 2 s"):
        ManualClock().advance(-2)
    clock = MonotonicClock()
    assert clock.now() <= clock.now()
