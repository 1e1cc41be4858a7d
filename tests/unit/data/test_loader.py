"""``elastic.loader``: which batches it gives, and which arguments it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from elastic_runtime.data.loader import loader
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError

DATA = TensorDataset(torch.arange(8))


def sampler(rank: int = 0, world: int = 1) -> ElasticBatchSampler:
    return ElasticBatchSampler(8, 4, rank=rank, world=world)


class Numbers:
    """Iterable, and of no class of torch's."""

    def __iter__(self) -> Any:
        return iter(range(8))


def test_each_rank_gets_its_share_of_each_global_batch() -> None:
    shares = [
        [batch[0].tolist() for batch in loader(DATA, sampler(rank, world=2))] for rank in (0, 1)
    ]
    assert [len(share) for share in shares[0]] == [2, 2]
    assert sorted(n for share in shares for batch in share for n in batch) == list(range(8))


def test_processes_are_kept_only_where_there_are_any() -> None:
    assert not loader(DATA, sampler()).persistent_workers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DATA, 4), "needs an ElasticBatchSampler as its second argument, not a int"),
        ((Numbers(), sampler()), "at_least_once"),
    ],
)
def test_another_kind_of_data_or_sampler_is_refused(
    arguments: tuple[Any, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        loader(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True, "drop_last": True}, "leaves drop_last, shuffle to the sampler"),
        ({"in_order": False}, "in_order=False"),
        ({"batch_size": 4}, "give them to ElasticBatchSampler"),
        ({"seed": 4}, "give them to ElasticBatchSampler"),
        ({"at_least_once": True}, "at_least_once=True is for iterable data"),
    ],
)
def test_options_that_belong_elsewhere_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loader(DATA, sampler(), **options)
