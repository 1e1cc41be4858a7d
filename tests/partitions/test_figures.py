"""What a cut costs, from the steps that ranks have made."""

from __future__ import annotations

from tests.partitions import figures
from tests.partitions.figures import Made

_S = 10**9


def _made(second: float, worker: str, round_: int, world: int, step: int) -> Made:
    return Made(int(second * _S), worker, round_, world, step)


# Two ranks; at 2 s b is cut off, at 5 s a goes on without it, at 8 s it heals, at 9 s b is back.
_STORY = [
    _made(1, "a", 1, 2, 10),
    _made(1, "b", 1, 2, 10),
    _made(1.5, "b", 1, 2, 11),
    _made(5, "a", 2, 1, 11),
    _made(6, "a", 2, 1, 12),
    _made(9, "a", 3, 2, 13),
    _made(9.5, "b", 3, 2, 13),
]


def test_the_figures_of_a_cut() -> None:
    assert figures.others_after(_STORY, cut=2 * _S, until=10 * _S, rounds=1) == 3.0
    assert figures.longest_stall(_STORY, cut=2 * _S, until=int(9.5 * _S)) == 3.0
    assert figures.whole_at(_STORY, nodes=2, since=8 * _S) == 9.5 * _S
    assert figures.repeated_steps(_STORY, since=2 * _S) == 1


def test_a_cut_that_nobody_notices() -> None:
    assert figures.others_after(_STORY[:2], cut=0, until=2 * _S, rounds=1) == -1.0
    assert figures.whole_at(_STORY[:2], nodes=2, since=0) == 1 * _S


def test_not_all_are_back() -> None:
    assert figures.whole_at(_STORY[:-1], nodes=2, since=8 * _S) == 0
