"""The vote of ranks that are asked to leave at different inner steps."""

from __future__ import annotations

import torch.distributed as dist

from elastic_runtime.diloco.early_sync import Vote
from elastic_runtime.worker.peers import Peers
from tests.ranks import run_ranks, values


def test_a_rank_alone_is_the_furthest() -> None:
    vote = Vote(Peers())
    vote.cast(5)
    vote.cast(9)
    assert (vote.cast_at, vote.result()) == (5, 5)
    vote.close()
    assert vote.result() == 5


def votes(positions: list[int]) -> tuple[int, int]:
    """What this rank learns, twice."""
    vote = Vote(Peers(dist.group.WORLD))
    vote.cast(positions[dist.get_rank()])
    vote.cast(1000)
    return vote.result(), vote.result()


def test_all_meet_where_the_furthest_one_is() -> None:
    assert values(run_ranks(3, votes, [3, 7, 5])) == [(7, 7)] * 3


def leaves_with(voters: list[int]) -> int:
    """All leave together, and only some have voted before."""
    vote = Vote(Peers(dist.group.WORLD))
    if dist.get_rank() in voters:
        vote.cast(40)
    vote.close()
    return vote.result()


def test_a_voice_that_was_cast_is_answered_by_those_who_were_never_asked() -> None:
    assert values(run_ranks(3, leaves_with, [1])) == [40] * 3
    assert values(run_ranks(2, leaves_with, [])) == [0] * 2


def loses_a_rank() -> bool:
    """The other rank ends without a word."""
    vote = Vote(Peers(dist.group.WORLD))
    dist.barrier()  # both are connected
    if dist.get_rank() == 1:
        return True
    vote.close()  # a vote that is cast to nobody may be an error at once, or when it is waited for
    return vote.cast_at == 0


def test_a_rank_that_is_lost_while_all_leave_holds_up_nobody() -> None:
    assert values(run_ranks(2, loses_a_rank)) == [True] * 2
