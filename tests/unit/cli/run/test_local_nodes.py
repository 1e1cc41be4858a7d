"""Several local nodes: one exit code, and a store that cannot be opened."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.cli.run.local_nodes import combined_exit_code, watched

if TYPE_CHECKING:
    import random


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0, 0], 0),
        ([0, -9, 0], 0),  # a node was killed, the others ended well: the job is done
        ([5, 0, 4], 0),
        ([1, 5, -9], 1),
        ([3, 3], 3),
        ([5, 4, 3], 3),
        ([5, 5], 5),
        ([2, 2], 2),
        ([-9, -9], 137),
        ([-15, -15], 143),
        ([], 1),
    ],
)
def test_one_exit_code_of_many(codes: list[int], expected: int) -> None:
    assert combined_exit_code(codes) == expected


@given(st.lists(st.integers(-15, 5), min_size=1), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(codes: list[int], chance: random.Random) -> None:
    shuffled = list(codes)
    chance.shuffle(shuffled)
    assert combined_exit_code(codes) == combined_exit_code(shuffled)
    assert (combined_exit_code(codes) == 0) == (0 in codes)


def test_a_signal_that_is_ignored_from_the_start_is_no_request() -> None:
    """The nodes ignore it, too: counted, it would make the next one a second request."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        waits = watched(["SIGTERM", "SIGHUP"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP not in waits
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD} <= waits
    assert signal.SIGHUP in watched(["SIGTERM"])
