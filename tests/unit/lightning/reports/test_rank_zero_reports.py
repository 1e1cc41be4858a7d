"""Loggers and progress bars belong to the rank 0 of the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger

from elastic_runtime.lightning.reports.rank_zero_reports import RankZeroReports
from tests.unit.lightning.trainers import Line, trainer

if TYPE_CHECKING:
    from pathlib import Path


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
    made = trainer(
        folder,
        logger=logger,
        callbacks=list(callbacks),
        enable_progress_bar=any(isinstance(c, Bar) for c in callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )
    made.strategy.connect(Line())
    made.strategy.lightning_module.trainer = made
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
