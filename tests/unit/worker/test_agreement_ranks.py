"""What several ranks agree on, in processes of their own."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

import torch.distributed as dist

from elastic_runtime.worker.agreement import Agreement, Wish

if TYPE_CHECKING:
    from pathlib import Path


def _rank(rank: int, world: int, path: str, answers: multiprocessing.SimpleQueue[object]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    agreement = Agreement(dist.group.WORLD)
    heard = []
    for step in range(70):
        wishes = Wish.SAVE if (rank, step) == (1, 0) else Wish.NOTHING
        heard.append(int(agreement.step(Wish.TRAINS | wishes)))
    agreement.close()
    # After the answer that nobody trains any more none is under way: groups may end then. On long
    # steps the ranks ask at every one.
    time.sleep(0.05)
    agreement.step(Wish.TRAINS)
    agreement.at_once(Wish.TRAINS)
    agreed = Wish.NOTHING
    while not agreed:
        time.sleep(0.05)
        agreed = agreement.step(Wish.STAYS)
    assert agreement._work is None
    # The last word: both ranks' facts are as they are now, whatever was asked before.
    last = agreement.at_once(Wish.STAYS if rank == 0 else Wish.TRAINS)
    answers.put((heard, int(last)))
    dist.destroy_process_group()


def test_all_ranks_hear_the_same_at_the_same_step(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    answers: multiprocessing.SimpleQueue[object] = spawn.SimpleQueue()
    ranks = [
        spawn.Process(target=_rank, args=(rank, 2, str(tmp_path / "store"), answers))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    one, other = answers.get(), answers.get()
    assert one == other
    heard, last = one  # type: ignore[misc]
    assert heard.count(int(Wish.SAVE | Wish.TRAINS)) == 1, (
        "a wish of one rank is heard once, by all"
    )
    assert last == int(Wish.STAYS | Wish.TRAINS)
