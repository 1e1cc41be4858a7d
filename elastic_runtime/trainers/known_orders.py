"""What a sampler of torch's stands for: an order that is the same in every world."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

if TYPE_CHECKING:
    from elastic_runtime.data.epoch_order import Order


def order_of(sampler: Any, size: int) -> tuple[Order | None, bool]:
    """The order that a sampler of torch's stands for, and whether it repeats samples.

    Args:
        sampler: of a user's ``DataLoader``.
        size: of the data set, in samples.

    Returns:
        ``order`` and ``replacement`` of a ``DataLoader`` of ours.

    Raises:
        LookupError: it is of another kind.
    """
    kind = type(sampler)
    if kind is WeightedRandomSampler:
        weights, count, again = sampler.weights, sampler.num_samples, sampler.replacement
        return lambda _, rng: torch.multinomial(weights, count, again, generator=rng), True
    if kind is RandomSampler:
        if sampler.replacement or sampler.num_samples != size:
            return partial(_drawn, size, sampler.num_samples, sampler.replacement), True
        return None, False
    if isinstance(sampler, DistributedSampler) and sampler.shuffle:
        return None, False
    if kind in (SequentialSampler, DistributedSampler):
        return in_sequence(size), False
    raise LookupError(kind.__qualname__)


def in_sequence(size: int) -> Order:
    """The samples as they are numbered."""
    return lambda _, rng: range(size)


def _drawn(size: int, count: int, again: bool, epoch: int, rng: torch.Generator) -> torch.Tensor:
    """The indices that a ``RandomSampler`` with ``num_samples`` or ``replacement`` gives."""
    if again:
        return torch.randint(size, (count,), generator=rng)
    rounds = -(-count // size)
    return torch.cat([torch.randperm(size, generator=rng) for _ in range(rounds)])[:count]
