"""Each sequence of a step belongs to one rank, in every world, and ranks go through as many."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.torchtitan.stream_shares import StreamShares, saved_streams


@given(
    streams=st.integers(1, 40),
    per_stream=st.integers(1, 4),
    ranks=st.integers(1, 50),
    local=st.integers(1, 9),
)
def test_ranks_share_out_all_streams_and_go_in_step(
    streams: int, per_stream: int, ranks: int, local: int
) -> None:
    all_ranks = [
        StreamShares(streams * per_stream, streams, ranks, rank, local) for rank in range(ranks)
    ]
    assert [s for one in all_ranks for s in one.own] == list(range(streams))
    assert len({one.rows for one in all_ranks}) == 1
    for one in all_ranks:
        assert one.per_stream == per_stream
        assert len(one.own) * per_stream <= one.rows
        assert one.rows == one.micro_batches * local
    # No rank goes through a micro-batch in which nobody has anything.
    assert all_ranks[0].rows - local < len(all_ranks[0].own) * per_stream


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (
            StreamShares(16, 16, 4, 0, 2),
            "16 sequences a step on 4 data-parallel ranks: 4 each",
        ),
        (StreamShares(10, 10, 3, 1, 2), "4 to 3 each, in 2 x 2, 2 filled up"),
        (StreamShares(2, 2, 4, 3, 1), "1 to 0 each, in 1 x 1, 2 filled up"),
    ],
)
def test_people_read_what_each_rank_gets(shares: StreamShares, text: str) -> None:
    assert text in str(shares)


def test_streams_divide_the_global_batch() -> None:
    with pytest.raises(UsageError, match="10 sequences cannot be taken from 4 streams"):
        StreamShares(10, 4, 2, 0, 1)
    assert StreamShares(lcm(4, 6), 4, 2, 0, 1).per_stream == 3


def test_the_number_of_saved_streams() -> None:
    assert saved_streams([str(number) for number in range(12)]) == 12
    for names in (["0", "2"], ["a"], []):
        if names:
            with pytest.raises(CheckpointUsageError, match="not one of this loader's"):
                saved_streams(names)
