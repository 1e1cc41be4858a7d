"""What ``self.log`` has summed up, after a fault."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from elastic_runtime.lightning.reports.metric_accumulators import MetricAccumulators
from tests.unit.lightning.trainers import Line, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from lightning import Trainer


def training(folder: Path) -> Trainer:
    """A trainer in the middle of an epoch."""
    made = trainer(folder)
    made.strategy.connect(Line())
    made.strategy.lightning_module.trainer = made
    made.training = True
    made._logger_connector._first_loop_iter = False
    made._logger_connector._current_fx = "training_step"
    return made


def log(made: Trainer, value: float, *, synced: bool = False, name: str = "loss") -> None:
    """As ``self.log(on_epoch=True)`` does, for a batch of two."""
    made.fit_loop.epoch_loop._results.log(
        "training_step",
        name,
        torch.tensor(value),
        on_step=True,
        on_epoch=True,
        sync_dist=synced,
        sync_dist_fn=made.strategy.reduce,
        batch_size=2,
    )


def mean(made: Trainer, name: str = "loss") -> float:
    """Of the epoch so far."""
    metrics = made.fit_loop.epoch_loop._results.metrics(on_step=False)
    return float(metrics["callback"][f"{name}_epoch"])


def test_an_interrupted_step_adds_nothing(tmp_path: Path) -> None:
    made = training(tmp_path)
    noted = MetricAccumulators(made)
    log(made, 1.0)
    made._logger_connector._callback_metrics["val"] = torch.tensor(3.0)
    kept = noted.keep()
    log(made, 5.0)
    log(made, 7.0, name="new")
    made._logger_connector._callback_metrics["val"] = torch.tensor(4.0)
    made._logger_connector._first_loop_iter = None
    noted.go_back(kept)
    assert mean(made) == 1.0
    assert made._logger_connector._callback_metrics["val"] == 3.0
    assert made._logger_connector._first_loop_iter is False
    assert "training_step.new" not in made.fit_loop.epoch_loop._results


def test_a_new_rank_has_the_mean_of_another_one_and_goes_on(tmp_path: Path) -> None:
    one, other = training(tmp_path), training(tmp_path)
    log(one, 1.0)
    told = json.loads(json.dumps(MetricAccumulators(one).for_others()))
    MetricAccumulators(other).take(told)
    assert mean(other) == 1.0
    other.fit_loop.epoch_loop._results["training_step.loss"]._computed = None
    log(other, 3.0)
    assert mean(other) == 2.0


def test_a_new_rank_adds_nothing_to_what_is_summed_over_ranks(tmp_path: Path) -> None:
    one, other = training(tmp_path), training(tmp_path)
    log(one, 1.0, synced=True)
    told = json.loads(json.dumps(MetricAccumulators(one).for_others()))
    MetricAccumulators(other).take(told)
    metric = other.fit_loop.epoch_loop._results["training_step.loss"]
    assert (float(metric.value), int(metric.cumulated_batch_size)) == (0.0, 0)
    log(other, 3.0, synced=True)  # the same settings as before
    assert mean(other) == 3.0
