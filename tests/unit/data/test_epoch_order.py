"""Orders of the user's own: weighted, grouped by length, or wrong."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import WeightedRandomSampler

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError


def sampler_of(order: Any, **options: Any) -> ElasticBatchSampler:
    return ElasticBatchSampler(6, 4, order=order, rank=0, world=1, **options)


def epoch_of(sampler: ElasticBatchSampler) -> list[int]:
    return [index for batch in sampler for index in batch]


@pytest.mark.parametrize(
    "kind",
    [list, tuple, iter, torch.tensor, numpy.array, lambda i: torch.tensor(i, dtype=torch.int32)],
)
def test_any_row_of_whole_numbers_is_an_order(kind: Any) -> None:
    assert epoch_of(sampler_of(lambda epoch, rng: kind([5, 3, 1, 0, 2, 4]))) == [5, 3, 1, 0, 2, 4]


def test_the_generator_knows_seed_and_epoch() -> None:
    def shuffled(epoch: int, rng: torch.Generator) -> torch.Tensor:
        return torch.randperm(6, generator=rng)

    found = []
    for seed in (0, 1):
        sampler = sampler_of(shuffled, seed=seed)
        for epoch in range(3):
            sampler.epoch = epoch
            found.append(tuple(epoch_of(sampler)))
    assert len(set(found)) == 6
    again = sampler_of(shuffled, seed=1)
    again.epoch = 2
    assert tuple(epoch_of(again)) == found[-1]


def test_a_sampler_of_torch_with_the_generator_is_an_order() -> None:
    weights = [0.0, 1.0, 1.0, 0.0, 9.0, 1.0]
    sampler = sampler_of(
        lambda epoch, rng: WeightedRandomSampler(weights, 100, generator=rng), replacement=True
    )
    drawn = epoch_of(sampler)
    assert len(drawn) == 100
    assert len(sampler) == 25
    assert not {0, 3} & set(drawn)
    assert drawn.count(4) > 50


def test_a_list_that_is_shuffled_in_place_stays_as_it_was_given() -> None:
    numbers = torch.arange(6)
    sampler = sampler_of(lambda epoch, rng: numbers)
    batches = iter(sampler)
    first = next(batches)
    numbers.fill_(0)
    assert sorted(first + next(batches)) == list(range(6))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2, 3, 4, 6], "names sample 6, and the data set has 6"),
        ([-1, 0, 1, 2, 3, 4], "names sample -1"),
        ([0, 1, 2, 3, 4], "5 samples of 6: 1 do not come, 0 more than once"),
        ([0, 1, 2, 3, 4, 4], "1 do not come, 1 more than once; .*replacement=True"),
        ([], "is empty"),
        ([0.0, 1.0], "else than whole numbers"),
        (["a"], "else than whole numbers"),
        (None, "else than whole numbers"),
        ([[0, 1], [2, 3]], "else than whole numbers"),
        (torch.ones(6, dtype=torch.bool), "else than whole numbers"),
    ],
)
def test_what_is_no_order_is_refused(order: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        iter(sampler_of(lambda epoch, rng: order))


def test_with_replacement_numbers_must_be_in_range_all_the_same() -> None:
    with pytest.raises(UsageError, match="names sample 6"):
        iter(sampler_of(lambda epoch, rng: [6], replacement=True))


def test_drop_last_must_leave_something_of_an_epoch_of_its_own_length() -> None:
    sampler = sampler_of(lambda epoch, rng: [1, 2, 3], replacement=True, drop_last=True)
    with pytest.raises(UsageError, match="epoch 0 has 3 samples, and drop_last leaves nothing"):
        iter(sampler)


def test_an_order_that_is_another_one_each_time_is_refused() -> None:
    orders = itertools.cycle([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
    sampler = sampler_of(lambda epoch, rng: next(orders))
    with pytest.raises(UsageError, match="another one each time"):
        iter(sampler)


def test_the_order_is_asked_for_once_an_epoch() -> None:
    asked: list[int] = []

    def order(epoch: int, rng: torch.Generator) -> range:
        asked.append(epoch)
        return range(6)

    sampler = sampler_of(order)
    for _ in range(4):
        list(sampler)
        sampler.commit()
        sampler.state_dict()
    assert asked == [0, 0, 1]  # the first one twice, to see whether it is the same
