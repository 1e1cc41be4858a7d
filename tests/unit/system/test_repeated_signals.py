"""When a signal asks for the same thing as the one before it."""

from __future__ import annotations

import signal

import pytest

from elastic_runtime.system.repeated_signals import StopRequest


@pytest.mark.parametrize(
    ("signum", "now", "repeats"),
    [
        (signal.SIGTERM, 100.0, True),
        (signal.SIGTERM, 101.9, True),
        (signal.SIGTERM, 102.0, False),
        (signal.SIGINT, 100.0, False),
    ],
)
def test_the_same_signal_soon_after_is_the_same_request(
    signum: int, now: float, repeats: bool
) -> None:
    assert StopRequest(signal.SIGTERM, 100.0).repeated_by(signum, now) is repeats
