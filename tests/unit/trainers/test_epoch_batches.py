"""The batches of an adapter: how large, in which order, from where on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import elastic_runtime as elastic
from elastic_runtime.data.epoch_order import Orders
from elastic_runtime.trainers.batch_record import BatchRecord
from elastic_runtime.trainers.epoch_batches import EpochBatches
from elastic_runtime.trainers.known_orders import order_of

if TYPE_CHECKING:
    from pathlib import Path


NUMBERS = torch.arange(12)


def batches(**options: Any) -> EpochBatches:
    """Batches of four."""
    given = DataLoader(NUMBERS, batch_size=4, collate_fn=lambda some: [int(one) for one in some])
    return EpochBatches(given, global_batch_size=4, order=lambda *_: range(12), **options)


def test_it_begins_where_the_job_is_and_is_as_long_as_the_epoch() -> None:
    made = batches()
    assert next(iter(made)) == [0, 1, 2, 3]
    made.loader.commit()
    assert list(made) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(made) == 3
    assert made.batch_sampler is made.loader.batch_sampler
    assert made.num_workers == 0
    with pytest.raises(AttributeError, match="sampler"):
        _ = made.sampler


def test_a_step_comes_in_pieces_and_says_what_they_count() -> None:
    made = batches(at_once=3)
    assert len(made) == 6
    assert len(next(iter(made))) == 2
    assert made.step.weights == [0.5, 0.5]
    assert made.step.samples == 4


def test_an_iteration_is_ready_until_it_gives_something() -> None:
    made = batches()
    assert not made.is_ready
    iteration = iter(made)
    assert made.is_ready
    next(iteration)
    assert not made.is_ready
    iter(made)
    made.enter()
    assert not made.is_ready


def test_a_loader_of_ours_is_taken_as_it_is() -> None:
    own = elastic.DataLoader(NUMBERS, 6)
    made = EpochBatches(own)
    assert made.loader is own
    assert made.batch_size == 6
    assert len(list(made)) == len(made) == 2


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


def record(directory: str) -> BatchRecord:
    """That of a trainer, in this directory."""
    return BatchRecord(directory, "lightning", "micro_batch")


def test_what_was_recorded_is_found(tmp_path: Path) -> None:
    directory = str(tmp_path / "runs" / "job")
    assert record(directory).batch() == 0
    record(directory).write(32)
    record(directory).write(32)
    assert record(directory).batch() == 32
    assert BatchRecord(directory, "transformers", "micro_batch").batch() == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"micro_batch": "many"}', '{"micro_batch": -1}'])
def test_what_is_half_written_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "lightning.json").write_text(text)
    assert record(str(tmp_path)).batch() == 0


def test_a_place_that_cannot_be_written_is_for_the_checkpointer_to_tell() -> None:
    record("/proc/nothing/here").write(32)
    assert record("/proc/nothing/here").batch() == 0


def test_further_numbers_are_kept(tmp_path: Path) -> None:
    record(str(tmp_path)).write(32, finished=7)
    record(str(tmp_path)).write(32)
    assert record(str(tmp_path)).number("finished") == 7
    record(str(tmp_path)).write(32, finished=0)
    assert record(str(tmp_path)).number("finished") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["lightning.json"]
