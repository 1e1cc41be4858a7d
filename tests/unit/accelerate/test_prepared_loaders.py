"""Loaders that ``prepare`` gives: shares of a rank, gathered again; other data for each world."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from accelerate.state import GradientState
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.accelerate import uneven_gather
from elastic_runtime.accelerate.prepared_loaders import OtherLoader, TrainingLoader
from elastic_runtime.accelerate.uneven_gather import gather_shares, shares_of
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


class Ranks:
    """Each rank gathers in turn; the last one gets what all have given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
        self.world = world
        self._given: list[Any] = []
        self._calls = 0
        self._rounds: list[list[Any]] = []
        monkeypatch.setattr(uneven_gather, "gather", self._gather)
        monkeypatch.setattr(uneven_gather, "gather_object", self._gather)

    def _gather(self, data: Any) -> Any:
        if self._calls == len(self._rounds):
            self._rounds.append([])
        given = self._rounds[self._calls]
        self._calls += 1
        given.append(data)
        if not torch.is_tensor(data):
            return [one for each in given for one in each]
        assert len({one.shape for one in given}) == 1, "gloo would end the process"
        missing = self.world - len(given)  # which nobody looks at
        rows = [one if one.ndim else one[None] for one in given]
        return torch.cat([*rows, *[torch.zeros_like(rows[0])] * missing])

    def begin(self) -> None:
        """The next rank."""
        self._calls = 0


@pytest.mark.parametrize(("samples", "shares"), [(8, [3, 3, 2]), (6, [2, 2, 2]), (2, [1, 1, 0])])
def test_each_sample_comes_once(
    monkeypatch: pytest.MonkeyPatch, samples: int, shares: list[int]
) -> None:
    assert shares_of(samples, 3) == shares
    ranks, first = Ranks(monkeypatch, 3), 0
    for rank, share in enumerate(shares):
        own = torch.arange(first, first + max(1, share))[:, None]
        ranks.begin()
        found = gather_shares({"x": own}, shares, rank, as_objects=False)
        first += share
    assert found["x"][:, 0].tolist() == list(range(samples))


def test_objects_of_a_rank_without_a_share_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 3)
    for rank, word in enumerate("abb"):
        ranks.begin()
        found = gather_shares([word], [1, 1, 0], rank, as_objects=False)
    assert found == ["a", "b"]


def test_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="got 1 rows, and this rank has 3 of the batch's 8"):
        gather_shares(torch.ones(1), [3, 3, 2], 0, as_objects=False)
