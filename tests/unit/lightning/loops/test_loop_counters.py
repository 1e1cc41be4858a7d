"""The counters of the loops, which are the same on all ranks, and go with each commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lightning.pytorch.trainer.states import TrainerFn

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning import trainer_parts
from elastic_runtime.lightning.elastic_strategy import ElasticStrategy
from elastic_runtime.lightning.loops.loop_counters import LoopCounters, settle_loaded
from tests.unit.lightning.trainers import Line, loader, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.lightning.loops.elastic_fit_loop import ElasticFitLoop


def ready(folder: Path, batch: int = 8, **options: Any) -> ElasticFitLoop:
    """The loop of a trainer whose data are set up: five batches an epoch."""
    trainer_parts._has_fitted = False
    made = trainer(folder, ElasticStrategy(folder / "job", global_batch=batch), **options)
    module = Line()
    made._data_connector.attach_data(module, train_dataloaders=loader())
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
    for _ in range(batches):
        progress = loop.epoch_loop.batch_progress
        progress.increment_ready()
        progress.increment_started()
        progress.increment_processed()
        progress.increment_completed()
        loop.train_data.sampler.commit()


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
    assert newcomer.train_data.sampler.batch_sizes == (8, 8)
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
    sampler = loop.train_data.sampler
    assert (sampler.epoch, sampler.cursor) == (0, 24)
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
    sampler = loop.train_data.sampler
    assert (sampler.epoch, sampler.cursor) == (1, 0)
    assert loop.epoch_progress.current.completed == 1
