"""Iterable data: refused, or read in global batches that know no world."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from tests.unit.data.play import Life, train, world_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.data.stream import StreamLoader
    from tests.unit.data.play import Step


class Numbers(IterableDataset[int]):
    """0, 1, 2, … in an order that depends on the epoch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        start = self.epoch % max(1, self.size)
        return iter([*range(start, self.size), *range(start)])


class Foreign:
    """Iterable, but not torch's."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def stream(size: int, batch: int, rank: int, world: int, **options: Any) -> StreamLoader:
    made = elastic.loader(Numbers(size), batch=batch, at_least_once=True, **options)
    made.enter(world_of(rank, world))
    return made


def play(size: int, batch: int, lives: list[Life], epochs: int) -> list[Step]:
    """Goes through lives until done; the samples of each global batch, sorted."""
    position = ""
    done: list[Step] = []
    for life in itertools.cycle(lives):
        ranks = [stream(size, batch, rank, life.world) for rank in range(life.world)]
        for rank in ranks if position else []:
            rank.load_state_dict(json.loads(position))
        done += [sorted(step) for step in train(ranks, ranks, life, epochs)]
        (position,) = {json.dumps(rank.state_dict()) for rank in ranks}
        if ranks[0].epoch >= epochs:
            break
    return done


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 12),
    lives=st.lists(
        st.builds(Life, st.integers(1, 4), st.integers(1, 6), st.integers(0, 4)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_stream_that_repeats_itself_counts_each_sample_once(
    size: int, batch: int, lives: list[Life]
) -> None:
    steps = play(size, batch, lives, 2)
    assert steps == play(size, batch, [Life(1, 1 << 30)], 2)
    half = len(steps) // 2
    for epoch in (steps[:half], steps[half:]):
        assert sorted(i for step in epoch for i in step) == list(range(size))


def test_reading_ahead_does_not_commit() -> None:
    loader = stream(10, 4, 0, 1)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert loader.state_dict() == {"epoch": 0, "cursor": 0}
    loader.commit()
    assert loader.state_dict() == {"epoch": 0, "cursor": 4}
    assert next(iter(loader)).tolist() == [4, 5, 6, 7]
    loader.commit()
    loader.commit()  # a step without a batch moves nothing
    assert loader.cursor == 8


def test_its_samples_have_random_numbers_of_their_own() -> None:
    class Noise(Numbers):
        def __iter__(self) -> Iterator[int]:
            return (elastic.sample_rng(i).initial_seed() for i in super().__iter__())

    def noise(seed: int) -> StreamLoader:
        made = elastic.loader(Noise(3), batch=1, at_least_once=True, seed=seed)
        made.epoch = 2
        return made

    pairs = list(zip(noise(1), noise(5), strict=True))
    for number, seed in enumerate((1, 5)):
        assert [int(pair[number]) for pair in pairs] == [
            elastic.sample_rng(i, seed=seed, epoch=2).initial_seed() for i in (2, 0, 1)
        ]


def test_data_that_are_no_torch_class_are_iterable_too() -> None:
    with pytest.raises(UsageError, match="at_least_once=True"):
        elastic.loader(Foreign(), elastic.ElasticBatchSampler(10, 5))  # type: ignore[call-overload]
    loader = elastic.loader(Foreign(), batch=5, at_least_once=True)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize("cursor", [0, 10, 12])
def test_a_stream_with_nothing_to_give_is_an_error(cursor: int) -> None:
    """Else a loop until an epoch is over would never end."""
    loader = stream(10 if cursor else 0, 4, 0, 1)
    loader.load_state_dict({"epoch": 0, "cursor": cursor})
    with pytest.raises(UsageError, match=f"no sample after the {cursor} of epoch 0"):
        next(iter(loader))


def test_the_size_of_a_batch_goes_by_its_usual_name() -> None:
    loader = elastic.loader(Numbers(5), batch_size=4, at_least_once=True)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4]]
    assert repr(loader) == "StreamLoader(batch_size=4; epoch 0, cursor 0, rank 0 of 1)"


def test_the_weight_belongs_to_a_batch() -> None:
    with pytest.raises(UsageError, match="none has been taken"):
        _ = stream(10, 4, 0, 1).loss_scale


NUMBERED = torch.arange(10)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (Numbers(3), {"sampler": elastic.ElasticBatchSampler(3, 1)}, "at_least_once=True"),
        (Numbers(3), {}, "no numbered samples"),
        (Numbers(3), {"at_least_once": True}, "in global batches of batch_size="),
        (Numbers(3), {"at_least_once": True, "batch": 1, "drop_last": True}, "leaves drop_last"),
        (
            Numbers(3),
            {"at_least_once": True, "batch": 1, "sampler": elastic.ElasticBatchSampler(3, 1)},
            "without a sampler",
        ),
        (NUMBERED, {"at_least_once": True, "batch": 1}, "give loader.. an ElasticBatchSampler"),
        (NUMBERED, {}, "as its second argument, not a NoneType"),
        (NUMBERED, {"sampler": [[1]]}, "not a list"),
        (
            NUMBERED,
            {"sampler": elastic.ElasticBatchSampler(10, 1), "batch": 2},
            "give them to ElasticBatchSampler",
        ),
        (
            NUMBERED,
            {"sampler": elastic.ElasticBatchSampler(10, 1), "batch_size": 2},
            "give them to ElasticBatchSampler",
        ),
        (
            Numbers(3),
            {"at_least_once": True, "batch": 1, "batch_size": 1},
            "batch= is an older name",
        ),
        (
            NUMBERED,
            {"sampler": elastic.ElasticBatchSampler(10, 1), "in_order": False},
            "in_order=False",
        ),
        (
            NUMBERED,
            {"sampler": elastic.ElasticBatchSampler(10, 1), "shuffle": True},
            "leaves shuffle",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    data: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        elastic.loader(data, **arguments)
