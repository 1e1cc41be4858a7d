"""Which DataLoaders a script is found to have made."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.worker.state.dataloaders import sampler_of_one_world

DATA = TensorDataset(torch.arange(8))


@pytest.fixture(autouse=True)
def _none_of_other_tests() -> None:
    gc.collect()


def test_a_loader_that_shuffles_for_one_world_is_found() -> None:
    plain = DataLoader(DATA)
    assert sampler_of_one_world() == ""
    shuffles = DataLoader(DATA, shuffle=True)
    assert sampler_of_one_world() == "RandomSampler"
    ours = DataLoader(DATA, batch_sampler=ElasticBatchSampler(8, 4))
    assert sampler_of_one_world() == "", "the other one is for something else"
    del plain, shuffles, ours


def test_a_distributed_sampler_is_for_one_world() -> None:
    shares = DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0))
    assert sampler_of_one_world() == "DistributedSampler"
    del shares
