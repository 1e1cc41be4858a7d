"""The user's loader, with a sampler that knows all worlds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.loops.train_data import DataSettings, TrainData

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = torch.arange(40)


def train_data(given: object, *, settings: DataSettings | None = None, **trainer: Any) -> TrainData:
    """Of a trainer with these settings."""
    module = SimpleNamespace(automatic_optimization=True)
    usual = {"accumulate_grad_batches": 1, "overfit_batches": 0, "lightning_module": module}
    owner = SimpleNamespace(**{**usual, "reload_dataloaders_every_n_epochs": 0, **trainer})
    source = _DataLoaderSource(given, "train_dataloader")
    return TrainData(source, owner, settings or DataSettings(None, 3, 1))


def epoch_of(data: TrainData) -> list[int]:
    """All samples of the present epoch, as they come."""
    return [int(number) for batch in data.dataloader() for number in batch]


def test_a_batch_is_one_of_all_ranks_of_the_reference_world() -> None:
    settings = DataSettings(None, 3, reference_world=2)
    data = train_data(DataLoader(NUMBERS, batch_size=4), settings=settings)
    assert len(data.dataloader()) == 5
    assert data.sampler.batch_sizes == (8, 8)


def test_the_global_batch_can_be_given() -> None:
    settings = DataSettings(10, 3, reference_world=7)
    data = train_data(DataLoader(NUMBERS, batch_size=4), settings=settings)
    assert len(data.dataloader()) == 4


def test_its_length_is_that_of_the_whole_epoch_also_in_the_middle() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=8))
    batches = data.dataloader()
    data.sampler.commit()
    assert (len(batches), len(data.sampler)) == (5, 4)


def test_accumulated_gradients_are_pieces_of_a_batch() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=4), accumulate_grad_batches=3)
    batches = data.dataloader()
    assert data.sampler.batch_sizes == (12, 4)
    assert len(batches) == 10
    data.sampler.commit()
    assert data.sampler.cursor == 12


def test_shuffled_data_come_in_a_random_order_once() -> None:
    shuffled = epoch_of(train_data(DataLoader(NUMBERS, batch_size=8, shuffle=True)))
    assert sorted(shuffled) == list(range(40)) != shuffled


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": DistributedSampler(NUMBERS, 2, 0, shuffle=False)},
    ],
)
def test_other_data_come_in_their_own_order(options: dict[str, Any]) -> None:
    assert epoch_of(train_data(DataLoader(NUMBERS, batch_size=8, **options))) == list(range(40))


def test_overfitting_turns_the_shuffling_off() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=8, shuffle=True), overfit_batches=2)
    assert epoch_of(data) == list(range(40))


def test_a_weighted_sampler_draws_as_it_was_told() -> None:
    weights = [0.0] * 30 + [1.0] * 10
    sampler = WeightedRandomSampler(weights, 25)
    drawn = epoch_of(train_data(DataLoader(NUMBERS, batch_size=8, sampler=sampler)))
    assert len(drawn) == 25
    assert min(drawn) >= 30


@pytest.mark.parametrize(("count", "again"), [(25, False), (60, False), (60, True)])
def test_a_random_sampler_of_another_length(count: int, again: bool) -> None:
    sampler = RandomSampler(NUMBERS, replacement=again, num_samples=count)
    drawn = epoch_of(train_data(DataLoader(NUMBERS, batch_size=8, sampler=sampler)))
    assert len(drawn) == count
    assert (len(set(drawn)) == min(count, 40)) is not again


def test_a_sampler_of_ours_is_taken_as_it_is() -> None:
    own = ElasticBatchSampler(NUMBERS, 10, order=lambda epoch, rng: reversed(range(40)))
    data = train_data(DataLoader(NUMBERS, batch_sampler=own))
    assert epoch_of(data) == list(reversed(range(40)))
    assert data.sampler is own


def test_what_is_ready_is_not_read_again() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=8))
    batches = data.dataloader()
    assert not batches.is_ready
    begun = iter(batches)
    assert batches.is_ready
    next(begun)
    assert not batches.is_ready
    iter(batches)
    data.sampler.commit()
    assert not batches.is_ready, "it begins where the sampler is not any more"
    iter(batches)
    batches.enter()
    assert not batches.is_ready, "it was begun in another world"


def test_an_epoch_begins_at_its_beginning_whatever_was_left_of_the_last() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=8))
    data.dataloader()
    data.sampler.commit()
    data.begin_epoch(1)
    assert (data.sampler.epoch, data.sampler.cursor) == (1, 0)


class Forwards(Sampler[int]):
    """One of the user's own."""

    def __iter__(self) -> Any:
        return iter(range(40))

    def __len__(self) -> int:
        return 40


class Endless(IterableDataset[int]):
    """Without numbers."""

    def __iter__(self) -> Any:
        return iter(int, 1)


@pytest.mark.parametrize(
    ("given", "trainer", "words"),
    [
        (lambda: [DataLoader(NUMBERS), DataLoader(NUMBERS)], {}, "one torch.utils.data.DataLoader"),
        (lambda: DataLoader(Endless()), {}, "map-style"),
        (lambda: DataLoader(NUMBERS, batch_size=None), {}, "no batch_size"),
        (lambda: DataLoader(NUMBERS, batch_sampler=[[1, 2]]), {}, "ElasticBatchSampler"),
        (lambda: DataLoader(NUMBERS, sampler=Forwards()), {}, "Forwards"),
        (lambda: DataLoader(NUMBERS), {"reload_dataloaders_every_n_epochs": 1}, "leave it out"),
        (
            lambda: DataLoader(NUMBERS, batch_sampler=ElasticBatchSampler(NUMBERS, 4)),
            {"accumulate_grad_batches": 2},
            "micro_batch_size=4",
        ),
    ],
)
def test_what_has_no_position_is_refused(
    given: Callable[[], object], trainer: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        train_data(given(), **trainer).dataloader()


def test_a_global_batch_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one sample"):
        DataSettings(0, None, 1)


def test_the_jobs_batch_counts_before_the_loaders() -> None:
    assert DataSettings(None, 0, 2, recorded=10).micro_batch(8) == 10
    assert DataSettings(None, 0, 2).micro_batch(8) == 16
    with pytest.raises(UsageError, match="batches of 10 samples"):
        DataSettings(12, 0, 2, recorded=10)
