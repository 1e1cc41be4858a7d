"""The pace of the agreement, and one rank that agrees with itself."""

from __future__ import annotations

import pytest

from elastic_runtime.worker.agreement import (
    Agreement,
    Foreseen,
    Wish,
    pause_after,
    usual_step_us,
)
from elastic_runtime.worker.peers import Peers

_HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("step_us", "pause"),
    [(0, 64), (1, 64), (100, 64), (1_000, 30), (10_000, 3), (25_000, 1), (10**7, 1)],
)
def test_a_new_round_agrees_often(step_us: int, pause: int) -> None:
    for age_us in (0, 100_000, 240_000):
        assert pause_after(step_us, age_us) == pause


@pytest.mark.parametrize(
    ("age_us", "pause"),
    [(0, 2), (1_000_000, 6), (2_000_000, 12), (8_000_000, 12), (_HOUR_US, 12)],
)
def test_an_old_round_agrees_less_often(age_us: int, pause: int) -> None:
    assert pause_after(20_000, age_us) == pause


@pytest.mark.parametrize(
    ("step_us", "pause"), [(1, 64), (4_000, 16), (25_000, 10), (300_000, 1), (10**7, 1)]
)
def test_an_old_round_agrees_in_time_also_if_steps_become_longer(step_us: int, pause: int) -> None:
    assert pause_after(step_us, _HOUR_US) == pause


@pytest.mark.parametrize(
    ("foreseen", "pause"),
    [
        (Foreseen(), 12),
        (Foreseen(seconds=60.0), 12),
        (Foreseen(seconds=0.1), 5),
        (Foreseen(seconds=0.0), 2),  # it is due, and waits for something: as at first
        (Foreseen(steps=10), 10),
        (Foreseen(steps=100), 12),
        (Foreseen(steps=0), 1),
        (Foreseen(seconds=0.1, steps=30), 5),
        (Foreseen(seconds=0.1).or_before(Foreseen(steps=3)), 3),
    ],
)
def test_what_is_foreseen_comes_in_time(foreseen: Foreseen, pause: int) -> None:
    assert pause_after(20_000, _HOUR_US, foreseen) == pause


def test_one_long_step_does_not_bring_the_agreement_back_but_a_very_long_one_does() -> None:
    assert usual_step_us(0, 0, 0) == 1
    assert usual_step_us(50 * 20_000, 50, 20_000) == 20_000
    assert usual_step_us(49 * 20_000 + 100_000, 50, 100_000) == 21_600
    assert usual_step_us(49 * 20_000 + 10**7, 50, 10**7) == 1_250_000


def test_one_rank_agrees_at_once() -> None:
    agreement = Agreement(None)
    for wishes in (Wish.NOTHING, Wish.SAVE, Wish.LEAVE | Wish.SAVE, Wish.NOTHING):
        assert agreement.step(lambda wishes=wishes: wishes) == wishes  # type: ignore[misc]
    agreement.close()


def test_one_rank_exchanges_with_itself() -> None:
    peers = Peers()
    assert (peers.rank, peers.world, peers.group) == (0, 1, None)
    assert peers.gather({"a": 1}) == [{"a": 1}]
    assert peers.on_first(lambda: "x") == "x"
