"""The user's loader, with a sampler that knows all worlds; and the counters of the loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import ChainDataset, DataLoader, SubsetRandomSampler, WeightedRandomSampler

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning import fit_job
from elastic_runtime.lightning.elastic_strategy import ElasticStrategy
from elastic_runtime.lightning.loops.loop_counters import LoopCounters, settle_loaded
from elastic_runtime.lightning.loops.train_data import DataSettings, TrainData
from tests.unit.lightning.trainers import Line, trainer
from tests.unit.lightning.trainers import loader as numbers_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elastic_runtime.lightning.loops.elastic_fit_loop import ElasticFitLoop


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
    assert data.loader.global_batch_size == 8


def test_the_global_batch_can_be_given() -> None:
    settings = DataSettings(10, 3, reference_world=7)
    data = train_data(DataLoader(NUMBERS, batch_size=4), settings=settings)
    assert len(data.dataloader()) == 4


def test_accumulated_gradients_are_batches_of_one_commit() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=4), accumulate_grad_batches=3)
    batches = data.dataloader()
    assert data.loader.global_batch_size == 4
    assert len(batches) == 10
    given = iter(batches)
    for _ in range(3):
        next(given)
    data.loader.commit()
    assert data.loader.cursor == 12


def test_shuffled_data_come_in_a_random_order_once() -> None:
    shuffled = epoch_of(train_data(DataLoader(NUMBERS, batch_size=8, shuffle=True)))
    assert sorted(shuffled) == list(range(40)) != shuffled


def test_overfitting_turns_the_shuffling_off() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=8, shuffle=True), overfit_batches=2)
    plain = train_data(DataLoader(NUMBERS, batch_size=8))
    assert epoch_of(data) == epoch_of(plain) == list(range(40))


def test_a_weighted_sampler_draws_as_it_was_told() -> None:
    weights = [0.0] * 30 + [1.0] * 10
    sampler = WeightedRandomSampler(weights, 25)
    drawn = epoch_of(train_data(DataLoader(NUMBERS, batch_size=8, sampler=sampler)))
    assert len(drawn) == 25
    assert min(drawn) >= 30


def test_a_loader_of_ours_is_taken_as_it_is() -> None:
    own = elastic.DataLoader(NUMBERS, 10, order=lambda epoch, rng: reversed(range(40)))
    data = train_data(own)
    assert epoch_of(data) == list(reversed(range(40)))
    assert data.loader is own


def test_an_epoch_begins_at_its_beginning_whatever_was_left_of_the_last() -> None:
    data = train_data(DataLoader(NUMBERS, batch_size=8))
    next(iter(data.dataloader()))
    data.loader.commit()
    data.begin_epoch(1)
    assert (data.loader.epoch, data.loader.cursor) == (1, 0)
    assert len(list(data.dataloader())) == 5


@pytest.mark.parametrize(
    ("given", "trainer", "words"),
    [
        (lambda: [DataLoader(NUMBERS), DataLoader(NUMBERS)], {}, "one torch.utils.data.DataLoader"),
        (lambda: DataLoader(ChainDataset([])), {}, "map-style"),
        (lambda: DataLoader(NUMBERS, batch_size=None), {}, "no batch_size"),
        (lambda: DataLoader(NUMBERS, batch_sampler=[[1, 2]]), {}, "elastic.DataLoader"),
        (lambda: DataLoader(NUMBERS, sampler=SubsetRandomSampler([1])), {}, "SubsetRandom"),
        (lambda: DataLoader(NUMBERS), {"reload_dataloaders_every_n_epochs": 1}, "leave it out"),
        (lambda: elastic.DataLoader(NUMBERS, 4, at_once=2), {}, "accumulate_grad_batches"),
    ],
)
def test_what_has_no_position_is_refused(
    given: Callable[[], object], trainer: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        train_data(given(), **trainer).dataloader()


def test_the_jobs_batch_counts_before_the_loaders() -> None:
    assert DataSettings(None, 0, 2, recorded=10).batch(8) == 10
    assert DataSettings(None, 0, 2).batch(8) == 16
    with pytest.raises(UsageError, match="batches of 10 samples"):
        DataSettings(12, 0, 2, recorded=10)


def ready(folder: Path, batch: int = 8, **options: Any) -> ElasticFitLoop:
    """The loop of a trainer whose data are set up: five batches an epoch."""
    fit_job._has_fitted = False
    made = trainer(folder, ElasticStrategy(folder / "job", global_batch=batch), **options)
    module = Line()
    made._data_connector.attach_data(module, train_dataloaders=numbers_loader())
    made.state.fn = TrainerFn.FITTING
    made.training = True
    made.strategy.connect(module)
    made.strategy.setup_environment()
    loop: ElasticFitLoop = made.fit_loop
    loop.min_epochs, loop.max_epochs = 0, 2
    loop.setup_data()
    return loop


def advance(loop: ElasticFitLoop, batches: int) -> None:
    """Counts as the loops do, in the middle of the first epoch, after the optimizer."""
    loop.epoch_progress.increment_ready()
    loop.epoch_progress.increment_started()
    given = iter(loop.train_data.batches)
    for _ in range(batches):
        progress = loop.epoch_loop.batch_progress
        progress.increment_ready()
        progress.increment_started()
        progress.increment_processed()
        progress.increment_completed()
        next(given)
        loop.train_data.loader.commit()


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    one, other = ready(tmp_path), ready(tmp_path)
    counters = LoopCounters(one)
    advance(one, 2)
    counters.commit()
    LoopCounters(other).load_state_dict(counters.state_dict())
    assert other.epoch_loop.batch_progress == one.epoch_loop.batch_progress
    assert other.epoch_progress == one.epoch_progress
    assert other.epoch_loop.owes
    assert LoopCounters(other).state_dict() == counters.state_dict()


def test_a_step_that_was_cut_off_is_completed(tmp_path: Path) -> None:
    loop = ready(tmp_path)
    advance(loop, 1)
    loop.epoch_loop.batch_progress.increment_ready()
    loop.epoch_loop.batch_progress.increment_started()  # and then its optimizer has stepped
    counters = LoopCounters(loop)
    counters.commit()
    state = counters.state_dict()
    assert state["batch.current.completed"] == state["batch.total.processed"] == 2
    assert state["owes"]


def test_who_joins_takes_the_global_batch_of_the_job(tmp_path: Path) -> None:
    job, newcomer = ready(tmp_path), ready(tmp_path, batch=20)
    assert newcomer.max_batches == 2
    with pytest.warns(UserWarning, match=r"8 samples.*begun with 20.*global_batch=8"):
        LoopCounters(newcomer).load_state_dict(LoopCounters(job).state_dict())
    assert newcomer.train_data.loader.global_batch_size == 8
    assert newcomer.max_batches == len(newcomer.train_data.batches) == 5
    assert newcomer._combined_loader is not None
    assert newcomer._combined_loader.limits == [5]


def test_other_data_in_the_middle_of_an_epoch_are_refused(tmp_path: Path) -> None:
    job, other = ready(tmp_path), ready(tmp_path, limit_train_batches=3)
    advance(job, 2)
    with pytest.raises(UsageError, match=r"had 5 batches.*has 3 now"):
        LoopCounters(other).load_state_dict(LoopCounters(job).state_dict())


def test_a_checkpoint_of_lightnings_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    saved, loop = ready(tmp_path), ready(tmp_path)
    advance(saved, 3)
    loop.load_state_dict(saved.state_dict())
    settle_loaded(loop)
    loader = loop.train_data.loader
    assert (loader.epoch, loader.cursor) == (0, 24)
    assert not loop.restarting
    assert not loop.epoch_loop.owes


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_checkpoint_of_lightnings_at_the_end_of_an_epoch(
    tmp_path: Path, is_counted: bool
) -> None:
    saved, loop = ready(tmp_path), ready(tmp_path)
    advance(saved, 5)
    if is_counted:
        saved.epoch_progress.increment_processed()
        saved.epoch_progress.increment_completed()
    loop.load_state_dict(saved.state_dict())
    settle_loaded(loop)
    loader = loop.train_data.loader
    assert (loader.epoch, loader.cursor) == (1, 0)
    assert loop.epoch_progress.current.completed == 1
