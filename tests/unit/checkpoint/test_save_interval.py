"""When a save is due."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Any

import pytest

from elastic_runtime.checkpoint.save_interval import Every, parse_every
from elastic_runtime.errors import CheckpointError


@pytest.mark.parametrize(
    ("value", "every"),
    [
        (None, Every()),
        (10, Every(steps=10)),
        ("10", Every(steps=10)),
        ("10 steps", Every(steps=10)),
        ("1 step", Every(steps=1)),
        ("30s", Every(seconds=30)),
        (" 1.5 M ", Every(seconds=90)),
        ("2h", Every(seconds=7200)),
        ("500ms", Every(seconds=0.5)),
        (timedelta(minutes=2), Every(seconds=120)),
        ("100 steps, 5m", Every(steps=100, seconds=300)),
        ("30s,10", Every(steps=10, seconds=30)),
        ((100, "5m"), Every(steps=100, seconds=300)),
        ([timedelta(seconds=1), "7 steps"], Every(steps=7, seconds=1)),
    ],
)
def test_every_is_understood(value: Any, every: Every) -> None:
    assert parse_every(value) == every


@pytest.mark.parametrize(
    ("last", "step", "due"), [(0, 9, False), (0, 10, True), (10, 19, False), (9, 31, True)]
)
def test_what_was_due_on_the_way(last: int, step: int, due: bool) -> None:
    assert Every(steps=10).due_between(last, step) is due
    assert not Every(seconds=1).due_between(last, step)


_NO_INTERVALS: list[Any] = [
    *[0, -1, "0s", "", "soon", "10 bananas", "-5s", "1.5 steps", 2.5, True, timedelta(0)],
    *["10, 20", "5m, 1h", "10,", ",", (), (10, 0), (10, "soon"), (10, None), "10, 5m, 3"],
]


@pytest.mark.parametrize("value", _NO_INTERVALS)
def test_what_is_not_understood_is_said(value: Any) -> None:
    with pytest.raises(CheckpointError, match="every="):
        parse_every(value)


def test_steps_are_due_at_their_multiples() -> None:
    assert [step for step in range(1, 31) if Every(steps=10).due_at(step)] == [10, 20, 30]
    assert not any(Every(seconds=3).due_at(step) for step in range(1, 31))


def test_with_both_whichever_comes_first() -> None:
    both = Every(steps=10, seconds=3)
    assert both.due_at(10)
    assert both.due_after(3.0)


def test_time_is_due_once_it_has_passed() -> None:
    assert not Every(seconds=3).due_after(2.9)
    assert Every(seconds=3).due_after(3.0)
    assert not Every(steps=3).due_after(1e9)
    assert not Every().due_after(1e9)


def test_what_is_left_of_an_interval() -> None:
    every = Every(steps=10, seconds=3)
    assert [every.steps_left(10, step) for step in (10, 13, 19, 20, 25)] == [10, 7, 1, 0, 0]
    assert [every.seconds_left(waited) for waited in (0.0, 2.0, 3.0, 9.0)] == [3.0, 1.0, 0.0, 0.0]
    assert Every().steps_left(0, 5) == Every().seconds_left(5.0) == inf
