"""The pace of the agreement, what several ranks agree on, and what they tell each other."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace
from unittest import mock

import pytest
import torch.distributed as dist

from elastic_runtime.errors import DamagedCheckpoint, UsageError
from elastic_runtime.worker import agreement as agreement_module
from elastic_runtime.worker.agreement import Agreement, Foreseen, Wish, pause_after, usual_step_us
from elastic_runtime.worker.peers import Peers
from tests.ranks import run_ranks, values

_HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("step_us", "age_us", "pause"),
    [
        # Often in a new round.
        *((0, age_us, 64) for age_us in (0, 100_000, 240_000)),
        *((10_000, age_us, 3) for age_us in (0, 100_000, 240_000)),
        *((1, 0, 64), (100, 0, 64), (1_000, 0, 30), (25_000, 0, 1), (10**7, 240_000, 1)),
        (20_000, 0, 2),
        (20_000, 1_000_000, 6),
        (20_000, 2_000_000, 12),
        (20_000, 8_000_000, 12),
        (20_000, _HOUR_US, 12),
        # In time also if steps become longer.
        (1, _HOUR_US, 64),
        (4_000, _HOUR_US, 16),
        (25_000, _HOUR_US, 10),
        (300_000, _HOUR_US, 1),
        (10**7, _HOUR_US, 1),
    ],
)
def test_a_new_round_agrees_often_and_an_old_one_less_often(
    step_us: int, age_us: int, pause: int
) -> None:
    assert pause_after(step_us, age_us) == pause


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


# What several ranks agree on, in processes of their own


def _agreeing() -> tuple[list[int], int]:
    agreement = Agreement(dist.group.WORLD)
    rank, asked = dist.get_rank(), 0

    def wishes() -> Wish:
        nonlocal asked
        asked += 1
        return Wish.TRAINS | (Wish.SAVE if (rank, asked) == (1, 1) else Wish.NOTHING)

    heard = [int(agreement.step(wishes)) for _ in range(70)]
    agreement.close()
    # After the answer that nobody trains any more none is under way: groups may end then. On long
    # steps the ranks ask at every one.
    time.sleep(0.05)
    agreement.step(lambda: Wish.TRAINS)
    agreement.at_once(Wish.TRAINS)
    agreed = Wish.NOTHING
    while not agreed:
        time.sleep(0.05)
        agreed = agreement.step(lambda: Wish.STAYS)
    assert agreement._work is None
    # The last word: both ranks' facts are as they are now, whatever was asked before.
    return heard, int(agreement.at_once(Wish.STAYS if rank == 0 else Wish.TRAINS))


def test_all_ranks_hear_the_same_at_the_same_step() -> None:
    one, other = values(run_ranks(2, _agreeing))
    assert one == other
    heard, last = one
    assert heard.count(int(Wish.SAVE | Wish.TRAINS)) == 1, "a wish of one rank is heard once"
    assert last == int(Wish.STAYS | Wish.TRAINS)


def _foreseeing() -> list[int]:
    """An old round of short steps; rank 1 foresees a wish of its own in 10 steps each time."""
    foreseen = Foreseen(steps=10) if dist.get_rank() == 1 else Foreseen()
    ticks = count(step=1_000_000)  # a busy machine has long steps now and then
    with mock.patch.object(agreement_module, "time", SimpleNamespace(monotonic_ns=ticks.__next__)):
        agreement = Agreement(dist.group.WORLD, lambda: foreseen)
        agreement._began -= 3_600 * 10**9
        heard = [bool(agreement.step(lambda: Wish.TRAINS)) for _ in range(51)]
    agreement.close()
    return [step for step, agreed in enumerate(heard) if agreed]


def test_all_ranks_agree_in_time_for_what_one_of_them_foresees() -> None:
    # Each one is read a step after its start.
    assert values(run_ranks(2, _foreseeing)) == [[1, 11, 21, 31, 41]] * 2


def _waiting() -> list[int]:
    """Rank 1 wishes something at its second step, and rank 0 at its fourth."""
    agreement = Agreement(dist.group.WORLD, waits=True)
    mine = (Wish.LEAVE, 4) if dist.get_rank() == 0 else (Wish.SAVE, 2)
    heard = []
    for step in range(1, 6):
        wishes = Wish.TRAINS | (mine[0] if step == mine[1] else Wish.NOTHING)
        heard.append(int(agreement.step(lambda wishes=wishes: wishes)))  # type: ignore[misc]
    assert agreement._work is None
    agreement.close()
    return heard


def test_where_commits_are_rare_all_ranks_hear_a_wish_at_the_step_at_which_it_was_made() -> None:
    trains = int(Wish.TRAINS)
    expected = [trains, trains | int(Wish.SAVE), trains, trains | int(Wish.LEAVE), trains]
    assert values(run_ranks(2, _waiting)) == [expected] * 2


# What ranks tell each other


# Around what fits into one exchange: a text has two quotes.
LENGTHS = (0, 1, 1013, 1014, 1015, 1016, 5000)


def _gathered(lengths: tuple[int, ...]) -> list[list[str]]:
    peers = Peers()
    return [peers.gather(chr(97 + peers.rank) * (one * (peers.rank + 1))) for one in lengths]


def test_answers_of_any_length_reach_all_ranks_whole() -> None:
    expected = [[chr(97 + rank) * (one * (rank + 1)) for rank in range(3)] for one in LENGTHS]
    assert values(run_ranks(3, _gathered, LENGTHS)) == [expected] * 3


def _purposes() -> str:
    peers = Peers()
    try:
        peers.gather("x" * 2000 * peers.rank, f"step.total() of step {peers.rank}")
    except UsageError as error:
        return str(error)
    return ""


def test_ranks_that_come_together_for_different_purposes_are_told_so() -> None:
    answers = values(run_ranks(2, _purposes))
    assert answers[0] == answers[1]
    assert "step.total() of step 0 on rank 0; step.total() of step 1 on rank 1" in answers[0]


def _from_and_to_the_first() -> list[object]:
    peers = Peers()
    mine = chr(97 + peers.rank)
    found: list[object] = []
    for length in LENGTHS:
        found.append(peers.on_first(lambda size=length: mine * size))
        found.append(peers.share_out(lambda size=length: ["a" * size, "b", "c" * 2 * size]))
        found.append(peers.to_first(mine * length if peers.rank != 1 else None))
    return found


def test_rank_0_gives_and_takes_answers_of_any_length() -> None:
    outcomes = [one.value for one in run_ranks(3, _from_and_to_the_first)]
    for at, size in enumerate(LENGTHS):
        told, shares, taken = zip(*(one[3 * at : 3 * at + 3] for one in outcomes), strict=True)
        assert told == ("a" * size,) * 3
        assert shares == ("a" * size, "b", "c" * 2 * size)
        assert taken == (["a" * size, None, "c" * size], None, None)


def _failing(text: str) -> list[str]:
    """What a failure of rank 1, and two of rank 0, come to on this one."""
    peers = Peers()

    def fail() -> list[str]:
        raise DamagedCheckpoint(text)

    def fail_on_1() -> None:
        if peers.rank == 1:
            fail()

    found = []
    for ask, action in (
        (peers.on_each, fail_on_1),
        (peers.on_first, fail),
        (peers.share_out, fail),
    ):
        try:
            ask(action)  # type: ignore[operator]
        except DamagedCheckpoint as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("text", ["it is damaged: ß", "long " * 1000])
def test_a_failure_of_one_rank_is_raised_on_all(text: str) -> None:
    assert values(run_ranks(2, _failing, text)) == [[text] * 3] * 2
