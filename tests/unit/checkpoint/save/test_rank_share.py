"""How ranks agree on a plan: what goes over the wire, and what is not asked for again."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from elastic_runtime.checkpoint.format.rank_outline import EvenCut, Item, chunk_of, say
from elastic_runtime.checkpoint.save.rank_share import WritePlans, agree
from elastic_runtime.worker.peers import Peers
from tests.ranks import Outcome, kill_self, run_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence


class Counting(Peers):
    """Counts the bytes that this rank gives to rank 0 alone."""

    sent = 0

    def to_first(self, value: Any) -> list[Any] | None:
        self.sent += len(repr(value)) if value else 0
        return super().to_first(value)


def held(rank: int, world: int, length: int = 8) -> list[Item]:
    """A shard, a replica, a value of each rank, and one of all."""
    offsets, sizes = chunk_of((EvenCut(0, world, rank),), (length, 2))
    shard = Item("shard", "float32", (length, 2), offsets, sizes, 8 * sizes[0])
    replicas = [Item(f"copy{n}", "float32", (16,), (0,), (16,), 64) for n in range(4)]
    found = [shard, *replicas, Item(f"rng.rank-{rank}")]
    return [*found, Item("steps")] if rank == 0 else found


def _agreed(lengths: Sequence[int]) -> list[tuple[int, list[str]]]:
    peers, plans = Counting(), WritePlans()
    found = []
    for length in lengths:
        before = peers.sent
        mine = held(peers.rank, peers.world, length)
        plan, rows = agree(plans, peers, say(mine, peers.rank, peers.world))
        assert (plan is None) == (peers.rank != 0), "it is rank 0's alone"
        found.append((peers.sent - before, [mine[row].key for row in rows]))
    return found


def test_what_is_alike_is_said_by_one_rank_and_a_known_world_by_none() -> None:
    outcomes = run_ranks(3, _agreed, (8, 9, 8))
    first, second, third = zip(*(one.value for one in outcomes), strict=True)
    files = [keys for _, keys in first]
    assert files == [
        ["shard", "copy1", "rng.rank-0", "steps"],
        ["shard", "copy2", "rng.rank-1"],
        ["shard", "copy0", "copy3", "rng.rank-2"],
    ], "the last shard is shorter"
    sent = [count for count, _ in first]
    assert sent[2] < sent[1] / 4, "its cuts alone: another rank says the rest"
    assert all(count for count, _ in second), "another shape is another plan"
    assert [count for count, _ in third] == [0, 0, 0], "that world was seen before"
    assert [keys for _, keys in third] == files


def _disagreeing() -> None:
    peers = Peers()
    shape = (3 + peers.rank // 2,)
    mine = [Item("w", "float32", shape, (0,), shape, 4 * shape[0])]
    agree(WritePlans(), peers, say(mine, peers.rank, peers.world))


def test_ranks_that_disagree_are_told_alike() -> None:
    expected = (
        "the ranks disagree about w: it is a float32 of shape (3,) on rank 0 and a float32 of "
        "shape (4,) on rank 2; build the same State on all ranks"
    )
    assert run_ranks(3, _disagreeing) == [Outcome(None, "CheckpointUsageError", expected)] * 3


class Dying(Peers):
    """Dies when it is its turn to say what it holds."""

    def to_first(self, value: Any) -> list[Any] | None:
        kill_self()
        return None


def _left_alone() -> None:
    peers = Dying() if int(os.environ["RANK"]) == 1 else Peers()
    agree(WritePlans(), peers, say(held(peers.rank, peers.world), peers.rank, peers.world))


def test_a_rank_that_dies_while_all_plan_holds_nobody_up() -> None:
    first, killed, last = run_ranks(3, _left_alone)
    assert killed.signal == signal.SIGKILL
    assert {first.error, last.error} == {"RuntimeError"}


def test_only_the_plans_of_the_last_worlds_are_kept() -> None:
    plans, peers = WritePlans(), Peers()
    for length in range(1, 8):
        agree(plans, peers, say(held(0, 1, length), 0, 1))
    assert len(plans) == 4
