"""When saves are due, when they are tried again, and when failures are too many."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Any

import pytest

from elastic_runtime.checkpoint.save.save_timetable import SaveTimetable, parse_limit
from elastic_runtime.checkpoint.save_interval import Every, parse_every
from elastic_runtime.errors import CheckpointError, CheckpointUsageError


@pytest.mark.parametrize(
    ("value", "every"),
    [
        (None, Every()),
        (10, Every(steps=10)),
        ("1 step", Every(steps=1)),
        (" 1.5 M ", Every(seconds=90)),
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


_NO_INTERVALS: list[Any] = [
    *[0, -1, "0s", "", "soon", "10 bananas", "-5s", "1.5 steps", 2.5, True, timedelta(0)],
    *["10, 20", "5m, 1h", "10,", ",", (), (10, 0), (10, "soon"), (10, None), "10, 5m, 3"],
]


@pytest.mark.parametrize("value", _NO_INTERVALS)
def test_what_is_not_understood_is_said(value: Any) -> None:
    with pytest.raises(CheckpointError, match="every="):
        parse_every(value)
    if isinstance(value, str):
        with pytest.raises(CheckpointUsageError, match=f"max_age='{value}' is not understood"):
            parse_limit(value, Every())


def test_steps_are_due_at_their_multiples_and_time_once_it_has_passed() -> None:
    steps, time, both = Every(steps=10), Every(seconds=3), Every(steps=10, seconds=3)
    for every in (steps, both):
        assert [step for step in range(1, 31) if every.due_at(step)] == [10, 20, 30]
        on_the_way = [every.due_between(*one) for one in ((0, 9), (0, 10), (10, 19), (9, 31))]
        assert on_the_way == [False, True, False, True]
    for every in (time, both):
        assert [every.due_after(waited) for waited in (2.9, 3.0)] == [False, True]
    assert not any(time.due_at(step) or time.due_between(0, step) for step in range(1, 31))
    assert not any(every.due_after(1e9) for every in (steps, Every()))


def test_what_is_left_of_an_interval() -> None:
    every = Every(steps=10, seconds=3)
    assert [every.steps_left(10, step) for step in (10, 13, 19, 20, 25)] == [10, 7, 1, 0, 0]
    assert [every.seconds_left(waited) for waited in (0.0, 2.0, 3.0, 9.0)] == [3.0, 1.0, 0.0, 0.0]
    assert Every().steps_left(0, 5) == Every().seconds_left(5.0) == inf


# When saves are due, when they are tried again, and when failures are too many


def table(every: int | str | None, limit: str | None = None, now: float = 0.0) -> SaveTimetable:
    interval = parse_every(every)
    return SaveTimetable.at_start(interval, parse_limit(limit, interval), now)


@pytest.mark.parametrize("every", [100, "1h", "100 steps, 1h"])
def test_the_first_save_is_due_as_soon_as_there_is_memory_for_it(every: int | str) -> None:
    new = table(every)
    assert not new.wish(1.0, ready=False)
    assert new.wish(1.0, ready=True)
    assert not new.asked().wish(2.0, ready=True), "once"
    assert not new.begin(2.0).wish(3.0, ready=True)


def test_no_first_save_if_only_the_user_says_when() -> None:
    assert not table(None).wish(1e9, ready=True)


def test_none_is_due_at_once_after_a_state_was_resumed() -> None:
    assert not table("1h").resumed(1.0, 7).wish(2.0, ready=True)
    assert table("1h").resumed(1.0, 7).wish(3601.0, ready=True)


def test_a_failed_save_is_tried_again_after_pauses_that_grow_and_not_before() -> None:
    now, pauses = 0.0, []
    this = table("10 steps").begin(0.0)
    for _ in range(8):
        this = this.fail(now, 10, None)
        assert not this.due_at(20), "a step that is due does not count now"
        assert not this.wish(this.soon - 0.01, ready=True)
        assert this.wish(this.soon, ready=True)
        pauses.append(this.soon - now)
        now = this.soon
        this = this.asked().begin(now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert this.due_at(20)


def test_the_pause_is_never_longer_than_the_interval() -> None:
    this = table("3s")
    for _ in range(5):
        this = this.fail(100.0, 10, None)
    assert this.soon == 103.0


def test_a_success_in_between_begins_the_count_anew() -> None:
    this = table("30s").fail(10.0, 1, None).fail(20.0, 2, None)
    assert this.failures == 2
    this = this.fail(30.0, 9, (25.0, 8))
    assert (this.failures, this.soon) == (1, 31.0)
    assert (this.whole_at, this.whole_step) == (25.0, 8)


def test_what_was_given_up_is_done_again_and_so_is_what_had_failed() -> None:
    begun = table("1h").begin(0.0)
    assert begun.enter(5.0, lost=True).wish(5.0, ready=True)
    assert not begun.enter(5.0, lost=False).wish(5.0, ready=True)
    failed = begun.fail(4.0, 3, None).enter(5.0, lost=False)
    assert failed.wish(5.0, ready=True)
    assert not failed.pausing, "a rank that is new would not know of it"


@pytest.mark.parametrize(
    ("every", "given", "steps", "seconds", "exceeded"),
    [
        ("30s", None, 10**6, 299, False),
        ("30s", None, 0, 300, True),
        ("1s", None, 0, 59, False),  # ten intervals, but at least a minute
        ("1s", None, 0, 60, True),
        (100, None, 999, 1e6, False),
        (100, None, 1000, 1e6, True),
        (1, None, 10**6, 59, False),
        ("100 steps, 1h", None, 1000, 100, True),
        (None, None, 10**9, 3599, False),
        (None, None, 0, 3600, True),
        ("30s", "5s", 0, 5, True),
        ("30s", "20 steps, 5m", 20, 1, True),
    ],
)
def test_how_long_no_save_may_succeed(
    every: int | str | None, given: str | None, steps: int, seconds: float, exceeded: bool
) -> None:
    assert parse_limit(given, parse_every(every)).exceeded(steps, seconds) is exceeded


def test_it_says_how_long_nothing_was_saved() -> None:
    this = table("30s").fail(301.0, 40, (1.0, 12))
    assert not this.overdue(200.0, 40)
    assert "nothing was saved for 300 s and 28 steps, since step 12" in this.overdue(301.0, 40)


def test_without_an_interval_the_first_failure_begins_the_time() -> None:
    this = table(None).fail(5000.0, 40, None)
    assert not this.overdue(5000.0, 40), "nothing had been due in that time"
    assert this.fail(8600.0, 50, None).overdue(8600.0, 50)


@pytest.mark.parametrize("every", ["10 steps", "30s"])
def test_what_is_put_off_is_no_failure_and_follows_soon(every: str) -> None:
    this = table(every).begin(0.0).put_off(40.0)
    assert not this.due_at(20)
    assert not this.wish(40.5, ready=True)
    assert this.wish(41.5, ready=True)
    assert not this.failures
    assert this.begin(42.0).due_at(20) is (every == "10 steps")


def test_the_ranks_hear_in_time_when_a_save_is_due() -> None:
    assert table(None).due_in(5.0) == inf
    assert table("10 steps").begin(0.0).due_in(5.0) == inf, "they know it without asking"
    assert table("30s").due_in(5.0) == 0.0, "the first one"
    begun = table("30s").begin(10.0)
    assert [begun.due_in(now) for now in (10.0, 25.0, 40.0, 50.0)] == [30.0, 15.0, 0.0, 0.0]
    assert begun.asked().due_in(40.0) == 30.0, "one begins about now"
    assert begun.fail(20.0, 1, None).due_in(20.5) == 0.5, "the next try"
