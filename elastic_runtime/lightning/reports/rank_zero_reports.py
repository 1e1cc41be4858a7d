"""Loggers, progress bars and directories: what belongs to the rank 0 of the moment.

Another process may be rank 0 in the next round. It goes on in the same directories: those that the
first rank 0 has chosen by itself (``lightning_logs/version_3``) are told to all ranks, and saved.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabrics
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.utilities import _log_hyperparams
from lightning.pytorch.utilities.rank_zero import rank_zero_only

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_KEPT = ".kept"


class RankZeroReports:
    """Hands loggers and progress bars to the process that is rank 0."""

    def __init__(self, trainer: Trainer, *, known_rank: bool) -> None:
        """Keeps loggers closed until the rank of this process is known for certain.

        To be made before the hooks ``setup``, in which loggers and callbacks choose directories.

        Args:
            trainer: whose.
            known_rank: it is known now.
        """
        self._trainer = trainer
        unopened = [x for x in trainer.loggers if getattr(x, "_experiment", x) is None]
        self._closed = [] if known_rank else unopened
        for logger in self._closed:
            logger._experiment = _DummyExperiment()
        # Of those that choose by themselves, the first choice counts for all.
        self._versions = {
            str(number): logger
            for number, logger in enumerate(trainer.loggers)
            if getattr(logger, "_version", logger) is None
        }
        self._directories = {
            callback.state_key: callback
            for callback in trainer.callbacks
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None
        }
        self._is_zero: bool | None = None

    def places(self) -> dict[str, Any]:
        """Where this process reports, as far as it was chosen by itself."""
        return {
            "versions": {key: logger._version for key, logger in self._versions.items()},
            "directories": {key: c.dirpath for key, c in self._directories.items()},
        }

    def take_places(self, told: dict[str, Any]) -> None:
        """Reports to the same places as another process."""
        for key, version in told["versions"].items():
            if key in self._versions and version is not None:
                self._versions[key]._version = version
        for key, directory in told["directories"].items():
            if key in self._directories and directory is not None:
                self._directories[key].dirpath = directory

    def hand_over(self, *, to_this: bool) -> None:
        """Opens loggers and shows progress here, or not.

        Args:
            to_this: this process is rank 0 now.
        """
        if self._closed:
            for logger in self._closed:
                logger._experiment = None
            if to_this:
                for logger in self._closed:
                    _open(logger)
                self._closed = []
                _log_hyperparams(self._trainer)
        if self._is_zero is not to_this:
            for bar in self._trainer.callbacks:
                if isinstance(bar, ProgressBar):
                    self._show(bar, to_this)
        self._is_zero = to_this

    def _show(self, bar: ProgressBar, to_this: bool) -> None:
        if not to_this:
            bar.disable()
            return
        bar.enable()
        if self._is_zero is False:  # it takes over in the middle
            trainer, module = self._trainer, self._trainer.lightning_module
            bar.on_train_start(trainer, module)
            bar.on_train_epoch_start(trainer, module)


def set_rank_zero(rank: int) -> None:
    """Tells Lightning which rank this process is, for what is done on rank 0 only."""
    rank_zero_only.rank = fabrics.rank = rank


def _open(logger: Any) -> None:
    """Opens the files of a logger; what another process has written there stays."""
    if not isinstance(logger, CSVLogger):
        _ = getattr(logger, "experiment", None)
        return
    path = os.path.join(logger.log_dir, "metrics.csv")
    files = logger._fs
    if files.isfile(path):
        # It deletes the file of an earlier process.
        files.mv(path, path + _KEPT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = logger.experiment
    if files.isfile(path + _KEPT):
        files.mv(path + _KEPT, path)
        with files.open(path, "r", newline="") as file:
            header = file.readline().strip()
        writer.metrics_keys = header.split(",") if header else []
