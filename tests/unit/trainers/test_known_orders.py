"""What samplers of torch's stand for, in every world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from elastic_runtime.data.epoch_order import Orders
from elastic_runtime.trainers.known_orders import order_of

DATA = list(range(10))


def epoch(sampler: Any) -> list[int]:
    """The first epoch of what it stands for."""
    order, replacement = order_of(sampler, len(DATA))
    drawn: list[int] = Orders(len(DATA), order, replacement=replacement).of(1, 0).tolist()
    return drawn


@pytest.mark.parametrize(
    "sampler",
    [RandomSampler(DATA), DistributedSampler(DATA, 2, 0), RandomSampler(DATA, num_samples=10)],
)
def test_what_shuffles(sampler: Any) -> None:
    assert sorted(epoch(sampler)) == DATA != epoch(sampler)


@pytest.mark.parametrize(
    "sampler", [SequentialSampler(DATA), DistributedSampler(DATA, 2, 0, shuffle=False)]
)
def test_what_does_not(sampler: Any) -> None:
    assert epoch(sampler) == DATA


@pytest.mark.parametrize(
    ("sampler", "size"),
    [
        (RandomSampler(DATA, num_samples=25), 25),
        (RandomSampler(DATA, replacement=True, num_samples=4), 4),
        (WeightedRandomSampler(torch.ones(10), 30), 30),
    ],
)
def test_what_draws_more_or_less_than_there_is(sampler: Any, size: int) -> None:
    drawn = epoch(sampler)
    assert len(drawn) == size
    assert set(drawn) <= set(DATA)


def test_weights_count() -> None:
    weights = torch.tensor([0.0] * 8 + [1.0] * 2)
    assert set(epoch(WeightedRandomSampler(weights, 30))) == {8, 9}


def test_another_kind_is_named() -> None:
    with pytest.raises(LookupError, match="SubsetRandomSampler"):
        order_of(SubsetRandomSampler([1, 2]), 10)
