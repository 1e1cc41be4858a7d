"""The clock of a test stands still until it is moved; the machine's never goes back."""

from __future__ import annotations

import pytest

from elastic_runtime.clock import ManualClock, MonotonicClock


def test_a_clock_of_a_test_moves_only_when_it_is_moved() -> None:
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance(1.5)
    assert clock.now() == 6.5


def test_no_clock_goes_back() -> None:
    with pytest.raises(ValueError, match=r"cannot go back by 2 s"):
        ManualClock().advance(-2)
    clock = MonotonicClock()
    assert clock.now() <= clock.now()
