"""An order of torch's is noticed when it is used, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from elastic_runtime.worker import one_world_samplers
from elastic_runtime.worker.one_world_samplers import sampler_of_one_world, watch_samplers
from elastic_runtime.worker.step_source import training

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = list(range(6))


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for kind in (DistributedSampler, RandomSampler, WeightedRandomSampler):
        monkeypatch.setattr(kind, "__iter__", kind.__iter__)  # is put back
    monkeypatch.setattr(one_world_samplers, "_seen", {})
    watch_samplers()
    yield


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        (lambda: DataLoader(DATA), ""),
        (lambda: DataLoader(DATA, shuffle=True), "RandomSampler"),
        (lambda: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 6, 4)), "WeightedRandom"),
        (lambda: DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "DistributedSampler"),
    ],
)
def test_what_is_iterated_over_is_noticed(loader: Any, name: str) -> None:
    made = loader()
    assert sampler_of_one_world(training=False) == ""
    torch.manual_seed(3)
    given = [int(n) for n in made]
    assert len(given) in (3, 4, 6)
    assert sampler_of_one_world(training=False).startswith(name)
    assert bool(sampler_of_one_world(training=False)) == bool(name)
    assert sampler_of_one_world(training=True) == ""


def test_beside_training_it_is_for_something_else() -> None:
    made = DataLoader(DATA, shuffle=True)
    with training(on=True):
        with training(on=False):
            list(made)
        assert sampler_of_one_world(training=True) == ""
        list(made)
    assert sampler_of_one_world(training=True) == "RandomSampler"
