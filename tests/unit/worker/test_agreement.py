"""The pace of the agreement, and one rank that agrees with itself."""

from __future__ import annotations

import pytest

from elastic_runtime.worker.agreement import Agreement, Wish, pause_after
from elastic_runtime.worker.peers import Peers


@pytest.mark.parametrize(
    ("longest_step_us", "pause"),
    [(0, 64), (1, 64), (100, 64), (1_000, 30), (10_000, 3), (25_000, 1), (10**7, 1)],
)
def test_short_steps_agree_less_often(longest_step_us: int, pause: int) -> None:
    assert pause_after(longest_step_us) == pause


def test_one_rank_agrees_at_once() -> None:
    agreement = Agreement(None)
    assert agreement.step(Wish.NOTHING) == Wish.NOTHING
    assert agreement.step(Wish.SAVE) == Wish.SAVE
    assert agreement.step(Wish.LEAVE | Wish.SAVE) == Wish.LEAVE | Wish.SAVE
    assert agreement.step(Wish.NOTHING) == Wish.NOTHING
    agreement.close()


def test_one_rank_exchanges_with_itself() -> None:
    peers = Peers()
    assert (peers.rank, peers.world, peers.group) == (0, 1, None)
    assert peers.gather({"a": 1}) == [{"a": 1}]
    assert peers.on_first(lambda: "x") == "x"
