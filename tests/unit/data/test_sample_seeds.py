"""The random numbers of a sample are its own, whoever loads it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import elastic_runtime as elastic
from elastic_runtime.data import sample_seeds
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Noise(Dataset[tuple[int, int]]):
    """Gives the number of each sample and the seed of its random numbers."""

    def __init__(self, size: int = 12) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, elastic.sample_rng(index).initial_seed()


def drawn(batches: Iterable[Any]) -> dict[int, int]:
    """The seed of each sample."""
    return {
        index: seed
        for numbers, noise in batches
        for index, seed in zip(numbers.tolist(), noise.tolist(), strict=True)
    }


def loader_of(data: Dataset[Any], world: int = 1, rank: int = 0, seed: int = 3) -> DataLoader[Any]:
    sampler = ElasticBatchSampler(data, 5, seed=seed, rank=rank, world=world)
    return DataLoader(data, batch_sampler=sampler)


def test_the_world_makes_no_difference() -> None:
    alone = drawn(loader_of(Noise()))
    assert len(set(alone.values())) == 12
    for world in (2, 3):
        parts = [drawn(loader_of(Noise(), world, rank)) for rank in range(world)]
        together = {key: value for part in parts for key, value in part.items()}
        assert together == alone


def test_epochs_and_seeds_make_a_difference() -> None:
    loaders = [loader_of(Noise()), loader_of(Noise(), seed=4), loader_of(Noise())]
    loaders[2].batch_sampler.epoch = 1  # type: ignore[union-attr]
    values = [value for loader in loaders for value in drawn(loader).values()]
    assert len(set(values)) == 36


def test_data_sets_within_data_sets_know_the_epoch_too() -> None:
    """A Subset asks with numbers of its own, and not one after the other."""
    inner = Subset(Subset(Noise(30), range(10, 30)), range(2, 14))
    assert drawn(loader_of(inner)) == {
        index: elastic.sample_rng(index, seed=3, epoch=0).initial_seed() for index in range(12, 24)
    }
    both = ConcatDataset([Noise(4), Noise(6)])
    assert drawn(loader_of(both)).keys() == set(range(6))


def test_two_loaders_in_turns_keep_their_seeds() -> None:
    one, other = loader_of(Noise(), seed=1), loader_of(Noise(), seed=2)
    pairs = list(zip(one, other, strict=True))
    assert drawn(pair[0] for pair in pairs) == drawn(one)
    assert drawn(pair[1] for pair in pairs) == drawn(other)


def test_where_a_batch_arrives_its_moment_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = next(iter(ElasticBatchSampler(12, 4, seed=8, rank=0, world=1)))
    assert isinstance(batch, sample_seeds.Batch)
    sent = pickle.dumps(batch)
    monkeypatch.setattr(sample_seeds, "_present", None)
    assert pickle.loads(sent) == batch
    expected = elastic.sample_rng(2, seed=8, epoch=0)
    assert elastic.sample_rng(2).initial_seed() == expected.initial_seed()


def test_numbers_of_any_kind_name_the_same_sample() -> None:
    for index in (0, numpy.int32(0), torch.tensor(0)):
        # A run that is resumed with a later version must see the same augmentation.
        assert elastic.sample_rng(index, seed=0, epoch=0).initial_seed() == 2602329642018764132


def test_without_a_batch_the_epoch_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_seeds, "_present", None)
    for known in ({}, {"seed": 1}, {"epoch": 1}):
        with pytest.raises(UsageError, match="give it seed= and epoch="):
            elastic.sample_rng(3, **known)


def test_a_name_is_no_number() -> None:
    with pytest.raises(UsageError, match="needs a whole number, not 'cat"):
        elastic.sample_rng("cat.png", seed=0, epoch=0)  # type: ignore[arg-type]
