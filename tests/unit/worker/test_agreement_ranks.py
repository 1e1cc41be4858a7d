"""What several ranks agree on, in processes of their own."""

from __future__ import annotations

import multiprocessing
import time
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import torch.distributed as dist

from elastic_runtime.worker import agreement as agreement_module
from elastic_runtime.worker.agreement import Agreement, Foreseen, Wish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Seconds. Two processes that import torch take most of a minute on a machine that is busy.
_PATIENCE = 150.0


def _rank(rank: int, world: int, path: str, answers: multiprocessing.SimpleQueue[object]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    agreement = Agreement(dist.group.WORLD)
    asked = 0

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
    last = agreement.at_once(Wish.STAYS if rank == 0 else Wish.TRAINS)
    answers.put((heard, int(last)))
    dist.destroy_process_group()


def _foreseeing(
    rank: int, world: int, path: str, answers: multiprocessing.SimpleQueue[object]
) -> None:
    """An old round of short steps; rank 1 foresees a wish of its own in 10 steps each time."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    foreseen = Foreseen(steps=10) if rank == 1 else Foreseen()
    ticks = count(step=1_000_000)  # a busy machine has long steps now and then
    with mock.patch.object(agreement_module, "time", SimpleNamespace(monotonic_ns=ticks.__next__)):
        agreement = Agreement(dist.group.WORLD, lambda: foreseen)
        agreement._began -= 3_600 * 10**9
        heard = [bool(agreement.step(lambda: Wish.TRAINS)) for _ in range(51)]
    agreement.close()
    answers.put([step for step, agreed in enumerate(heard) if agreed])
    dist.destroy_process_group()


def _waiting(
    rank: int, world: int, path: str, answers: multiprocessing.SimpleQueue[object]
) -> None:
    """Rank 1 wishes something at its second step, and rank 0 at its fourth."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    agreement = Agreement(dist.group.WORLD, waits=True)
    mine = (Wish.LEAVE, 4) if rank == 0 else (Wish.SAVE, 2)
    heard = []
    for step in range(1, 6):
        wishes = Wish.TRAINS | (mine[0] if step == mine[1] else Wish.NOTHING)
        heard.append(int(agreement.step(lambda wishes=wishes: wishes)))  # type: ignore[misc]
    assert agreement._work is None
    agreement.close()
    answers.put(heard)
    dist.destroy_process_group()


def _on_two_ranks(target: Callable[..., None], where: Path) -> object:
    """What both ranks answer, which must be the same."""
    spawn = multiprocessing.get_context("spawn")
    answers: multiprocessing.SimpleQueue[object] = spawn.SimpleQueue()
    ranks = [
        spawn.Process(target=target, args=(rank, 2, str(where / "store"), answers))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(_PATIENCE)
        assert rank.exitcode == 0
    one, other = answers.get(), answers.get()
    assert one == other
    return one


def test_all_ranks_agree_in_time_for_what_one_of_them_foresees(tmp_path: Path) -> None:
    # Each one is read a step after its start.
    assert _on_two_ranks(_foreseeing, tmp_path) == [1, 11, 21, 31, 41]


def test_all_ranks_hear_the_same_at_the_same_step(tmp_path: Path) -> None:
    one = _on_two_ranks(_rank, tmp_path)
    heard, last = one  # type: ignore[misc]
    assert heard.count(int(Wish.SAVE | Wish.TRAINS)) == 1, (
        "a wish of one rank is heard once, by all"
    )
    assert last == int(Wish.STAYS | Wish.TRAINS)


def test_where_commits_are_rare_all_ranks_hear_a_wish_at_the_step_at_which_it_was_made(
    tmp_path: Path,
) -> None:
    trains = int(Wish.TRAINS)
    expected = [trains, trains | int(Wish.SAVE), trains, trains | int(Wish.LEAVE), trains]
    assert _on_two_ranks(_waiting, tmp_path) == expected
