"""A user's loader with our sampler: an epoch from where the job is, and never less than that."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader, Dataset

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.epoch_batches import EpochBatches


class Shrinking(Dataset[int]):
    """Its length is what somebody says."""

    def __init__(self) -> None:
        self.size = 12

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def batches(data: Shrinking) -> tuple[EpochBatches, ElasticBatchSampler]:
    """Batches of four."""
    sampler = ElasticBatchSampler(data, 4, order=lambda *_: range(12))
    given = DataLoader(data, batch_size=4, collate_fn=list)
    return EpochBatches(given, sampler), sampler


def test_it_begins_where_the_job_is_and_is_as_long_as_the_epoch() -> None:
    made, sampler = batches(Shrinking())
    sampler.commit()
    assert list(made) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(made) == 3
    assert made.batch_sampler is sampler
    with pytest.raises(AttributeError, match="sampler"):
        _ = made.sampler


def test_an_iteration_is_ready_until_it_gives_something() -> None:
    made, sampler = batches(Shrinking())
    assert not made.is_ready
    iteration = iter(made)
    assert made.is_ready
    next(iteration)
    assert not made.is_ready
    iter(made)
    sampler.commit()
    assert not made.is_ready
    iter(made)
    made.enter()
    assert not made.is_ready


def test_data_that_end_early_are_no_epoch() -> None:
    made, sampler = batches(Shrinking())
    whole = sampler.outlook(*sampler.place)
    with sampler.giving([[0, 1, 2, 3]]), pytest.raises(UsageError, match="after 1 of the 3"):
        list(made)
    assert sampler.outlook(*sampler.place) == whole
