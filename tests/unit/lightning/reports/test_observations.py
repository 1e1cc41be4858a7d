"""What each rank has noted for itself: its own, another rank's, or that of a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

from elastic_runtime.lightning.reports.observations import Observations
from elastic_runtime.lightning.reports.rank_zero_reports import RankZeroReports
from tests.unit.lightning.trainers import Line, trainer

if TYPE_CHECKING:
    from pathlib import Path


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
        self.trainer = trainer(folder, callbacks=callbacks, enable_checkpointing=True)
        self.trainer.strategy.connect(Line())
        self.trainer.strategy.lightning_module.trainer = self.trainer
        self.trainer.training = True
        reports = RankZeroReports(self.trainer, known_rank=False)
        self.observations = Observations(self.trainer, reports, lambda: 0)

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


def test_a_step_that_was_adopted_keeps_what_it_has(tmp_path: Path) -> None:
    one = Noted(tmp_path)
    one.observations.note(3)
    one.validate(0.25, "b")
    one.observations.enter(4)
    assert one.stops.wait_count == 1


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
