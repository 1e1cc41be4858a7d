"""The progress bar and trackers belong to the process that is rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import ProgressCallback, TrainerCallback

from elastic_runtime.accelerate import accelerate_world
from elastic_runtime.transformers.rank_zero_callbacks import RankZeroCallbacks
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from pathlib import Path


class Begins(TrainerCallback):
    """Counts how often training begins."""

    begun = 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun += 1


class Played:
    """A process in one world after the other."""

    def __init__(self, folder: Path) -> None:
        self.begins = Begins()
        self.trainer = trainer(folder, callbacks=[self.begins], disable_tqdm=False)
        self.callbacks = RankZeroCallbacks(self.trainer)
        handler = self.trainer.callback_handler
        self.bar = next(c for c in handler.callbacks if isinstance(c, ProgressCallback))

    def enter(self, rank: int) -> None:
        """As this rank of three."""
        accelerate_world.enter(rank, 3, rank)
        self.callbacks.enter()

    def step(self) -> None:
        """What a Trainer tells the bar after a step."""
        self.trainer.state.global_step += 1
        self.bar.on_step_end(self.trainer.args, self.trainer.state, self.trainer.control)


def test_training_begins_once(tmp_path: Path) -> None:
    played = Played(tmp_path)
    for rank in (2, 1, 0):
        played.enter(rank)
    assert played.begins.begun == 1


def test_who_becomes_rank_zero_shows_the_progress(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.enter(1)
    played.step()
    assert played.bar.training_bar is None
    played.enter(0)
    played.step()
    assert played.bar.training_bar.n == 2
    played.enter(1)
    played.step()
    assert played.bar.training_bar is None


def test_the_bar_of_an_interrupted_evaluation_is_closed(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.enter(0)
    args, state, control = played.trainer.args, played.trainer.state, played.trainer.control
    played.bar.on_prediction_step(args, state, control, eval_dataloader=[1, 2])
    assert played.bar.prediction_bar is not None
    played.enter(0)
    assert played.bar.prediction_bar is None


def test_a_stop_that_was_decided_remains(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.trainer.control.should_training_stop = True
    played.enter(1)
    assert played.trainer.control.should_training_stop


def test_a_tracker_opens_again_at_the_rank_that_becomes_zero(tmp_path: Path) -> None:
    played = Played(tmp_path)
    tracker = type("Tracker", (TrainerCallback,), {"__module__": "transformers.integrations"})()
    tracker._initialized = True
    played.trainer.add_callback(tracker)
    played.enter(1)
    assert tracker._initialized
    played.enter(0)
    assert not tracker._initialized
