"""The first and last callback of a step; where a checkpoint of the Trainer's own was made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from transformers import TrainerCallback, TrainerState

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers import ElasticOptions
from elastic_runtime.transformers.steps.step_callbacks import (
    CommitsLast,
    CountsFirst,
    begin_at,
    place_of,
)
from elastic_runtime.transformers.steps.train_batches import TrainBatches
from tests.unit.transformers.hf_trainers import Numbers, trainer

if TYPE_CHECKING:
    from pathlib import Path


def test_one_is_the_first_and_one_the_last(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.callback_handler.add_callback(TrainerCallback())
    callbacks = sorted(made.callback_handler.callbacks, key=place_of)
    assert isinstance(callbacks[0], CountsFirst)
    assert isinstance(callbacks[-1], CommitsLast)


class Epochs(TrainerCallback):
    """What a callback sees of them."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(state.epoch)


def test_epochs_are_counted_by_steps(tmp_path: Path) -> None:
    # The last step has 4 samples, and one micro-batch instead of three.
    saved = ElasticOptions(global_batch=10, in_place=False, every="1h")
    epochs = Epochs()
    trainer(tmp_path, saved, callbacks=[epochs], num_train_epochs=2).train()
    assert epochs.seen == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])


def data(folder: Path, **options: Any) -> TrainBatches:
    """Steps of 8 samples."""
    return TrainBatches(trainer(folder, **options), 8, 0)


def test_a_job_goes_on_exactly_where_a_checkpoint_was_made(tmp_path: Path) -> None:
    saved = ElasticOptions(global_batch=8, in_place=False, every="1h")
    trainer(tmp_path, saved, save_strategy="steps", save_steps=4).train()
    checkpoint = tmp_path / "out" / "checkpoint-4"
    position = json.loads((checkpoint / "elastic_sampler.json").read_text())
    assert (position["epoch"], position["cursor"]) == (1, 8)
    begun = data(tmp_path)
    begin_at(str(checkpoint), TrainerState(epoch=0.5), begun)
    assert (begun.sampler.epoch, begun.sampler.cursor) == (1, 8)
    with pytest.raises(UsageError, match="of a data set of 24 samples, this one has 30"):
        begin_at(str(checkpoint), TrainerState(), data(tmp_path, train_dataset=Numbers(30)))


@pytest.mark.parametrize(
    ("epoch", "place", "warns"), [(2.0, (2, 0), 0), (1 + 2 / 3, (1, 16), 1), (1.9999, (2, 0), 0)]
)
def test_a_checkpoint_of_a_plain_trainer_has_no_exact_place(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    epoch: float,
    place: tuple[int, int],
    warns: int,
) -> None:
    begun = data(tmp_path)
    begin_at(str(tmp_path), TrainerState(epoch=epoch), begun)
    assert (begun.sampler.epoch, begun.sampler.cursor) == place
    assert caplog.text.count("in another order") == warns
