"""What each rank has noted for itself, what is summed up, and what rank 0 shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger

from elastic_runtime.lightning.reports.metric_accumulators import MetricAccumulators
from elastic_runtime.lightning.reports.observations import Observations
from elastic_runtime.lightning.reports.rank_zero_reports import RankZeroReports
from tests.unit.lightning.trainers import connected

if TYPE_CHECKING:
    from pathlib import Path

    from lightning import Trainer


class Counts(Callback):
    """One of the user's."""

    def __init__(self) -> None:
        self.count: Any = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Noted:
    """A process with three callbacks."""

    def __init__(self, folder: Path) -> None:
        self.stops, self.best = EarlyStopping("loss"), ModelCheckpoint(monitor="loss")
        self.counts = Counts()
        callbacks = [self.stops, self.best, self.counts]
        self.trainer = connected(folder, callbacks=callbacks, enable_checkpointing=True)
        self.trainer.training = True
        reports = RankZeroReports(self.trainer, known_rank=False)
        self.observations = Observations(self.trainer, reports)

    def validate(self, score: float, path: str) -> None:
        """What a validation leaves behind."""
        self.stops.wait_count += 1
        self.best.best_k_models[path] = torch.tensor(score)
        self.best.current_score = torch.tensor(score)
        self.best._last_global_step_saved = 7
        self.trainer.should_stop = True


def test_who_goes_on_goes_back_to_the_commit(tmp_path: Path) -> None:
    one = Noted(tmp_path)
    one.validate(0.5, "a")
    one.trainer.should_stop = False
    one.observations.note(3)
    one.best._last_global_step_saved = 7
    one.validate(0.25, "b")
    one.observations.enter(3)
    assert one.stops.wait_count == 1
    assert one.best.best_k_models == {"a": torch.tensor(0.5)}
    assert one.best.current_score == 0.5
    assert not one.trainer.should_stop


def test_a_checkpoint_has_all_of_it(tmp_path: Path) -> None:
    one, other = Noted(tmp_path), Noted(tmp_path)
    one.validate(0.5, "a")
    one.counts.count = 5
    one.best.dirpath = str(tmp_path / "chosen")
    saved = json.loads(json.dumps(one.observations.state_dict()))
    other.observations.load_state_dict(saved)
    other.observations.enter(7)
    assert other.stops.wait_count == 1
    assert other.best.best_k_models == {"a": torch.tensor(0.5)}
    assert (other.best.current_score, other.best._last_global_step_saved) == (0.5, 7)
    assert other.best.dirpath == str(tmp_path / "chosen")
    assert other.counts.count == 5
    assert other.trainer.should_stop


def test_a_state_that_is_no_plain_value_is_named_once(tmp_path: Path) -> None:
    one = Noted(tmp_path)
    one.counts.count = object()
    with pytest.warns(UserWarning, match="Counts.*neither saved"):
        saved = one.observations.state_dict()
    assert not any("Counts" in name for name in saved["callbacks"])
    one.observations.state_dict()


def training(folder: Path) -> Trainer:
    """A trainer in the middle of an epoch."""
    made = connected(folder)
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


class Bar(ProgressBar):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.shown, self.begun = True, 0

    def enable(self) -> None:
        self.shown = True

    def disable(self) -> None:
        self.shown = False

    def on_train_start(self, *_: object) -> None:
        self.begun += 1

    def on_train_epoch_start(self, *_: object) -> None:
        pass


def reports(folder: Path, *callbacks: object) -> tuple[RankZeroReports, CSVLogger]:
    """Those of a new process."""
    logger = CSVLogger(str(folder))
    made = connected(
        folder,
        logger=logger,
        callbacks=list(callbacks),
        enable_progress_bar=any(isinstance(c, Bar) for c in callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )
    return RankZeroReports(made, known_rank=False), logger


def test_another_process_goes_on_in_the_same_file(tmp_path: Path) -> None:
    first, logger = reports(tmp_path)
    logger.log_metrics({"lost": 1.0}, 1)  # before it is known which rank this is
    first.hand_over(to_this=True)
    logger.log_metrics({"loss": 0.5}, 2)
    logger.save()
    second, other = reports(tmp_path)
    second.take_places(first.places())
    second.hand_over(to_this=True)
    other.log_metrics({"loss": 0.25, "accuracy": 1.0}, 3)
    other.save()
    assert other.log_dir == logger.log_dir
    lines = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().split()
    assert lines == ["accuracy,loss,step", ",0.5,2", "1.0,0.25,3"]


def test_a_directory_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    first, _ = reports(tmp_path, ModelCheckpoint())
    second, _ = reports(tmp_path, ModelCheckpoint(str(tmp_path / "mine")))
    told = first.places() | {"directories": dict.fromkeys(first.places()["directories"], "x")}
    second.take_places(told)
    assert second.places()["directories"] == {}


def test_the_bar_is_shown_by_one_rank(tmp_path: Path) -> None:
    bar = Bar()
    made, _ = reports(tmp_path, bar)
    made.hand_over(to_this=False)
    assert not bar.shown
    made.hand_over(to_this=True)  # in the middle of training: it has not begun here yet
    assert (bar.shown, bar.begun) == (True, 1)
    made.hand_over(to_this=True)
    assert bar.begun == 1
