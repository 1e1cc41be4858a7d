"""A Trainer's job in one process: its schedule, its end, and what comes after the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from elastic_runtime.transformers import ElasticMixin, ElasticTrainer
from elastic_runtime.transformers.elastic_options import ElasticOptions
from elastic_runtime.transformers.training_job import TrainingJob
from tests.unit.transformers.hf_trainers import Line, Numbers, trainer

if TYPE_CHECKING:
    from pathlib import Path


def job(folder: Path, **options: Any) -> TrainingJob:
    """One that is about to train, with steps of 10 samples."""
    return TrainingJob(trainer(folder, **options), ElasticOptions(global_batch=10), None, None)


def test_the_schedule_follows_from_the_global_batch(tmp_path: Path) -> None:
    found = {
        job(tmp_path, per_device_train_batch_size=at_once, gradient_accumulation_steps=k)._max_steps
        for at_once, k in ((1, 1), (4, 1), (2, 5), (8, 3))
    }
    assert found == {3 * 3}  # of 24 samples, in three epochs


def test_it_trains_alone(tmp_path: Path) -> None:
    made = trainer(tmp_path, ElasticOptions(global_batch=8, in_place=False, every="1h"))
    assert made.train().global_step == 9
    assert made.args.gradient_accumulation_steps == 1
    assert made._elastic_job is None
    record = ElasticOptions().record(made.args.output_dir)
    assert (record.batch(), record.number("finished"), record.number("stopped")) == (8, 9, 0)


class Ends(TrainerCallback):
    """Ends training, and counts what happens."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.seen: Counter[str] = Counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen["step"] += 1
        if state.global_step == self.step:
            control.should_training_stop = True

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.seen["epoch"] += 1

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.seen["evaluation"] += 1


def again(folder: Path, monkeypatch: pytest.MonkeyPatch, ends: Ends, **options: Any) -> Any:
    """The next start of a job, which is saved at each step."""
    monkeypatch.setattr("elastic_runtime.transformers.elastic_mixin._has_trained", False)
    monkeypatch.setattr("elastic_runtime.training.run_loop._ran", False)
    saved = ElasticOptions(global_batch=8, in_place=False, every="1 steps")
    made = trainer(
        folder, saved, callbacks=[ends], eval_dataset=Numbers(), eval_strategy="epoch", **options
    )
    return made.train()


def test_a_finished_job_does_nothing_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = Ends(), Ends(), Ends()
    again(tmp_path, monkeypatch, first)
    assert first.seen == {"step": 9, "epoch": 3, "evaluation": 3}
    assert again(tmp_path, monkeypatch, second).global_step == 9
    assert not second.seen
    assert again(tmp_path, monkeypatch, third, num_train_epochs=4).global_step == 12
    assert third.seen == {"step": 3, "epoch": 1, "evaluation": 1}


def test_what_a_callback_has_ended_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(tmp_path, monkeypatch, Ends(step=4))
    second = Ends()
    assert again(tmp_path, monkeypatch, second).global_step == 4
    assert not second.seen


class Kwargs(Line):
    """Takes whatever comes, as many models of transformers do; its loss is a mean all the same."""

    def forward(self, inputs: torch.Tensor, labels: Any = None, **_: Any) -> Any:
        return {"logits": self.net(inputs)} if labels is None else super().forward(inputs, labels)


class OwnLoss(Trainer):
    """Somebody's trainer, with a signature as in many scripts."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        outputs = model(**inputs)
        loss = (outputs["logits"] - inputs["labels"]).square().mean()
        return (loss, outputs) if return_outputs else loss


class ElasticOwnLoss(ElasticMixin, OwnLoss):
    """The same, elastic."""


class OwnLossBelow(ElasticTrainer):
    """A user's loss in a class made from ours, which asks for what the Trainer would do."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """A loss that counts labels, as ``compute_loss_func``."""
    return (outputs["logits"] - labels).square().sum() / num_items_in_batch


@pytest.mark.parametrize(
    "options",
    [
        {"model": Line},
        {"model": Kwargs},
        {"model": Kwargs, "compute_loss_func": summed},
        {"model": Kwargs, "kind": ElasticOwnLoss},
        {"model": Kwargs, "kind": OwnLossBelow},
        {"model": Kwargs, "average_tokens_across_devices": False},
    ],
    ids=["mean", "kwargs", "summed", "own", "below", "apart"],
)
def test_a_step_is_the_same_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    ends = []
    for at_once in (10, 4, 3):
        monkeypatch.setattr("elastic_runtime.transformers.elastic_mixin._has_trained", False)
        monkeypatch.setattr("elastic_runtime.training.run_loop._ran", False)
        torch.manual_seed(1)
        named = {**options, "model": options["model"]()}
        saved = ElasticOptions(global_batch=10, in_place=False, every="1h")
        made = trainer(
            tmp_path / str(at_once),
            saved,
            per_device_train_batch_size=at_once,
            eval_dataset=Numbers(),
            eval_strategy="epoch",
            logging_strategy="steps",
            logging_steps=1,
            optim="sgd",
            learning_rate=0.1,
            **named,
        )
        made.train()
        logs = [x.get("loss", x.get("eval_loss")) for x in made.state.log_history]
        ends.append([*(v.item() for v in made.model.parameters()), *filter(None, logs)])
    assert len(ends[0]) == 2 + 9 + 3
    assert ends[1] == pytest.approx(ends[0], rel=1e-4)
    assert ends[2] == pytest.approx(ends[0], rel=1e-4)
