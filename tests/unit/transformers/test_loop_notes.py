"""What a rank has noted under a Trainer, how far it is, and what rank 0 shows."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import EarlyStoppingCallback, ProgressCallback, TrainerCallback
from transformers.trainer_callback import ExportableState

from elastic_runtime.accelerate import accelerate_world
from elastic_runtime.errors import UsageError
from elastic_runtime.transformers.loop_notes import LoopNotes
from elastic_runtime.transformers.progress import Progress
from elastic_runtime.transformers.rank_zero_callbacks import RankZeroCallbacks
from elastic_runtime.transformers.steps.train_batches import TrainBatches
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from pathlib import Path


class Counts(TrainerCallback, ExportableState):
    """One of the user's."""

    def __init__(self) -> None:
        self.count: Any = 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"count": self.count}}


class Noted:
    """A process in training."""

    def __init__(self, folder: Path, max_steps: int = 50) -> None:
        self.stops, self.counts = EarlyStoppingCallback(), Counts()
        self.trainer = trainer(folder, callbacks=[self.stops, self.counts])
        self.trainer.state.max_steps = max_steps
        self.trainer._tr_loss = torch.tensor(0.0)
        self.trainer._total_loss_scalar = 0.0
        self.trainer._globalstep_last_logged = 0
        self.trainer._initial_global_step = self.trainer._initial_num_input_tokens_seen = 0
        self.notes = LoopNotes(self.trainer)

    def train(self, step: int) -> None:
        """What some steps leave behind."""
        self.trainer.state.global_step = step
        self.trainer.state.epoch = step / 10
        self.trainer._tr_loss += 0.5
        self.trainer.state.best_metric = 0.25
        self.trainer.control.should_evaluate = True
        self.stops.early_stopping_patience_counter += 1
        self.counts.count += 1
        self.trainer.state.log_history.append({"loss": 0.5, "step": step})
        self.notes.grad_norm = torch.tensor(2.0)


def test_who_goes_on_goes_back_to_the_commit(tmp_path: Path) -> None:
    one = Noted(tmp_path)
    one.train(3)
    one.notes.note(3)
    one.train(4)
    one.trainer.control.should_evaluate = False
    one.notes.enter(3)
    assert one.trainer._tr_loss == 0.5
    assert one.stops.early_stopping_patience_counter == one.counts.count == 1
    assert [line["step"] for line in one.trainer.state.log_history] == [3]
    assert one.trainer.control.should_evaluate
    one.trainer._tr_loss += 1
    one.notes.enter(3)
    assert one.trainer._tr_loss == 0.5


def test_a_checkpoint_has_all_of_it(tmp_path: Path) -> None:
    one, other = Noted(tmp_path), Noted(tmp_path)
    one.train(3)
    one.trainer.control.should_training_stop = True
    saved = json.loads(json.dumps(one.notes.state_dict()))
    other.notes.load_state_dict(saved)
    other.notes.enter(3)
    assert other.trainer._tr_loss == 0.5
    assert other.stops.early_stopping_patience_counter == other.counts.count == 1
    assert other.trainer.state.log_history == one.trainer.state.log_history
    assert other.trainer.state.best_metric == 0.25
    assert (other.notes.grad_norm, other.trainer.state.epoch) == (2.0, 0.3)
    assert other.trainer.control.should_training_stop
    assert other.trainer.control.should_evaluate


def test_a_job_that_was_at_its_end_may_have_another_one_now(tmp_path: Path) -> None:
    one, longer = Noted(tmp_path, max_steps=3), Noted(tmp_path, max_steps=6)
    one.train(3)
    one.trainer.control.should_training_stop = True
    longer.notes.load_state_dict(one.notes.state_dict())
    assert not longer.trainer.control.should_training_stop


def test_logs_grow_by_what_is_new(tmp_path: Path) -> None:
    one, other = Noted(tmp_path), Noted(tmp_path)
    for step in (1, 2, 3):
        one.train(step)
        other.notes.take(one.notes.for_others(), begins=False)
        assert other.trainer.state.log_history == one.trainer.state.log_history
    one.notes.note(3)
    one.train(4)
    one.notes.for_others()
    one.notes.enter(3)
    one.trainer.state.log_history.append({"loss": 0.25, "step": 4})
    other.notes.take(one.notes.for_others(), begins=False)
    assert other.trainer.state.log_history == one.trainer.state.log_history


def test_what_is_logged_may_be_anything(tmp_path: Path) -> None:
    one, other = Noted(tmp_path), Noted(tmp_path)
    one.trainer.state.log_history.append({"each": np.array([1.0, 2.0]), "of": {1, 2}.__class__})
    other.notes.take(one.notes.for_others(), begins=False)
    assert other.trainer.state.log_history[0]["each"] == [1.0, 2.0]


def test_ranks_go_on_with_the_mean_of_their_losses(tmp_path: Path) -> None:
    one = Noted(tmp_path)
    one.notes.take_shared([[1.0, 0, False], [4.0, 0, False]])
    assert one.trainer._tr_loss == 2.5


def test_time_without_training_does_not_count(tmp_path: Path) -> None:
    one, other = Noted(tmp_path), Noted(tmp_path)
    one.notes.started -= 100
    saved = one.notes.state_dict()
    assert 100 <= saved["elapsed"] < 150
    other.notes.load_state_dict(saved)
    assert 100 <= time.time() - other.notes.started < 150


def test_a_job_that_begins_has_nothing_to_take(tmp_path: Path) -> None:
    one, other = Noted(tmp_path), Noted(tmp_path)
    one.train(1)
    other.notes.take(one.notes.for_others(), begins=True)
    assert other.counts.count == 0


def test_a_state_that_is_no_plain_json_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Noted(tmp_path)
    one.counts.count = object()
    states = one.notes.for_others()["callbacks"]
    assert list(states) == ["EarlyStoppingCallback#0"]
    one.notes.for_others()
    assert caplog.text.count("the callback Counts is neither saved") == 1


def progress(folder: Path, batch: int = 8, frozen: str = "") -> Progress:
    """That of a new trainer."""
    made = trainer(folder)
    return Progress(made, TrainBatches(made, batch, 0), frozen)


def test_a_commit_completes_what_the_trainer_had_not_counted(tmp_path: Path) -> None:
    one = progress(tmp_path)
    one.commit()
    assert one._trainer.state.global_step == 1
    one._trainer.state.global_step = 2  # as the Trainer does before its callbacks
    one.commit()
    assert (one._trainer.state.global_step, one.owes) == (2, True)


def test_another_rank_goes_there(tmp_path: Path) -> None:
    one, other = progress(tmp_path), progress(tmp_path)
    one.commit()
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert other._trainer.state.global_step == 1


def test_another_job_is_refused(tmp_path: Path) -> None:
    one = progress(tmp_path, frozen="a")
    with pytest.raises(UsageError, match=r"steps of 8 samples.*with 6"):
        progress(tmp_path, 6, "a").load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="same base model"):
        progress(tmp_path, frozen="b").load_state_dict(one.state_dict())


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
