"""Steps of several streams: their positions, and which rank each sequence belongs to."""

from __future__ import annotations

import os
from math import lcm
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.torchtitan.stream_reader import StepReader, packed, steps_of, unpacked
from elastic_runtime.torchtitan.stream_shares import StreamShares, saved_streams

if TYPE_CHECKING:
    from collections.abc import Iterator


class Counting:
    """A data set whose state goes on changing, as torchtitan's buffers do."""

    def __init__(self, first: int, last: int) -> None:
        self._next, self._last = first, last
        self._given: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while self._next < self._last:
            self._next += 1
            self._given.append(self._next - 1)
            yield self._next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next, "given": self._given}


def steps(reader: StepReader, count: int) -> list[list[tuple[int, list[int], int]]]:
    taken = [steps_of(step) for step, _ in zip(reader, range(count), strict=False)]
    return [[(one.stream, one.rows, unpacked(one.position)["next"]) for one in s] for s in taken]


def test_each_step_takes_as_many_from_each_stream() -> None:
    reader = StepReader({3: Counting(0, 9), 4: Counting(100, 109)}, per_stream=2)
    assert steps(reader, 2) == [
        [(3, [0, 1], 2), (4, [100, 101], 102)],
        [(3, [2, 3], 4), (4, [102, 103], 104)],
    ]


def test_a_stream_that_is_over_gives_nothing_while_others_go_on() -> None:
    reader = StepReader({0: Counting(0, 3), 1: Counting(0, 5)}, per_stream=2)
    assert [[rows for _, rows, _ in step] for step in steps(reader, 4)] == [
        [[0, 1], [0, 1]],
        [[2], [2, 3]],
        [[], [4]],
        [[], []],
    ]


def test_a_position_is_as_it_was_after_its_step() -> None:
    reader = StepReader({0: Counting(0, 9)}, per_stream=1)
    first, second = (steps_of(step) for step, _ in zip(reader, range(2), strict=False))
    assert unpacked(first[0].position)["given"] == [0]
    assert unpacked(second[0].position)["given"] == [0, 1]


def test_processes_share_the_streams_and_take_turns() -> None:
    reader = StepReader({n: Counting(10 * n, 10 * n + 9) for n in range(5)}, per_stream=1)
    parts = iter(DataLoader(reader, batch_size=None, num_workers=2))
    for step in range(3):
        found = [one for _ in range(2) for one in steps_of(next(parts))]
        assert {one.stream: one.rows for one in found} == {n: [10 * n + step] for n in range(5)}


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(UsageError, match=r"more than plain values.*tensor"):
        packed({"buffer": torch.zeros(2)})


def test_positions_come_back_as_they_were() -> None:
    # A tuple and large numbers, as in the state of a generator.
    position = {"epoch": 2, "buffer": [1, 2], "shards": {0: None}, "rng": (3, (1 << 127,), None)}
    assert unpacked(packed(position)) == position


class Rows:
    """Gives tensors for ever."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield {"input": torch.ones(8)}

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_many_sequences_of_processes_take_no_descriptors() -> None:
    reader = StepReader({n: Rows() for n in range(300)}, per_stream=1)
    parts = iter(DataLoader(reader, batch_size=None, num_workers=2, prefetch_factor=2))
    next(parts)
    before = len(os.listdir("/proc/self/fd"))
    kept = [next(parts) for _ in range(6)]
    assert len(os.listdir("/proc/self/fd")) < before + 20
    assert sum(len(steps_of(one)) for one in kept) == 900


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
        (StreamShares(16, 16, 4, 0, 2), "16 sequences a step on 4 data-parallel ranks: 4 each"),
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
