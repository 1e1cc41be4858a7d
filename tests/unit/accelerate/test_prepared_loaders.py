"""The loaders that ``prepare`` gives: shares of this rank, and other data for each world."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from accelerate.state import GradientState
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.accelerate.prepared_loaders import OtherLoader, TrainingLoader
from elastic_runtime.errors import UsageError

DATA = torch.arange(21)


def loader_of(batch: int, micro: int | None = None, rank: int = 0, world: int = 1) -> Any:
    sampler = elastic.ElasticBatchSampler(
        DATA, batch, micro_batch_size=micro, rank=rank, world=world
    )
    given = DataLoader(DATA, batch_sampler=sampler)
    return TrainingLoader(given, sampler, torch.device("cpu")), sampler


def test_it_says_of_each_batch_what_accelerate_asks_for() -> None:
    loader, sampler = loader_of(batch=8)
    state = GradientState()
    assert len(loader) == 3 and not state.in_dataloader
    seen = []
    for _batch in loader:
        assert state.active_dataloader is loader
        seen.append((state.end_of_dataloader, loader.ends_step, loader.samples))
        sampler.commit()
    assert seen == [(False, True, 8), (False, True, 8), (True, True, 5)]
    assert not state.in_dataloader and state.remainder == -1


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_weights_of_a_step_add_up_to_the_number_of_ranks(world: int) -> None:
    # As many as DDP divides by.
    of_ranks = []
    for rank in range(world):
        loader, sampler = loader_of(batch=12, micro=4, rank=rank, world=world)
        steps, weights = [], []
        for _batch in loader:
            weights.append(loader.weight)
            if loader.ends_step:
                steps.append(sum(weights))
                weights = []
                sampler.commit()
        of_ranks.append(steps)
    for step in zip(*of_ranks, strict=True):
        assert sum(step) == pytest.approx(world)


def test_micro_batches_end_a_step_where_they_fill_it() -> None:
    loader, sampler = loader_of(batch=12, micro=4)
    ends = []
    for _batch in loader:
        ends.append(loader.ends_step)
        if loader.ends_step:
            sampler.commit()
    assert ends == [False, False, True, False, False, True]  # 9 samples in the last step


def test_a_commit_that_does_not_come_is_missed() -> None:
    loader, _ = loader_of(batch=8)
    batches = iter(loader)
    next(batches)
    with pytest.raises(UsageError, match=r"is not committed; call state\.commit"):
        next(batches)


def test_a_commit_after_the_first_micro_batch_is_too_early() -> None:
    loader, sampler = loader_of(batch=8, micro=4)
    batches = iter(loader)
    next(batches)
    sampler.commit()
    with pytest.raises(UsageError, match=r"only if accelerator\.sync_gradients"):
        next(batches)


def test_it_shows_what_its_loader_has() -> None:
    loader, sampler = loader_of(batch=8)
    assert loader.dataset is DATA and loader.batch_sampler is sampler
    with pytest.raises(AttributeError):
        _ = loader.nothing_of_the_kind
    assert len(pickle.loads(pickle.dumps(loader))) == 3


def test_other_data_are_shared_out_once_for_each_world() -> None:
    made: list[list[int]] = []

    def share_out(loader: Any) -> list[int]:
        made.append([*loader][len(made) :])
        return made[-1]

    loader = OtherLoader([1, 2, 3], share_out)
    assert (list(loader), len(loader), list(loader)) == ([1, 2, 3], 3, [1, 2, 3])
    assert loader.gives(made[0]) and not loader.gives([1, 2, 3]) and not loader.gives(None)
    loader.enter()
    assert (list(loader), len(made)) == ([2, 3], 2)


def test_an_iteration_that_was_left_in_a_step_is_not_begun_again() -> None:
    loader, sampler = loader_of(batch=8, micro=4)
    for _batch in loader:
        break
    with pytest.raises(UsageError, match="before the last micro-batch of a step"):
        next(iter(loader))
    loader.enter()  # its step was broken off with the world
    for _batch in loader:
        if loader.ends_step:
            sampler.commit()
            break
    assert len(next(iter(loader))) == 4


def test_an_iterator_that_is_kept_goes_on_in_another_world() -> None:
    loader, sampler = loader_of(batch=6)
    kept = iter(loader)
    first = next(kept)
    sampler._place = (0, 2)
    loader.enter()
    again = next(kept)  # the step was not committed
    assert again.tolist() == first.tolist()[:3]
    sampler.commit()
    sampler._place = (0, 1)
    loader.enter()
    rest = []
    for batch in kept:
        rest += batch.tolist()
        sampler.commit()
    assert sorted([*first.tolist(), *rest]) == DATA.tolist()


def test_loops_may_say_the_epoch() -> None:
    loader, _ = loader_of(batch=8, micro=4)
    loader.set_epoch(3)
    assert loader.total_batch_size == 4
