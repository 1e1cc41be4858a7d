"""What an elastic Trainer refuses, and what it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from transformers import Trainer, TrainerCallback

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers import ElasticMixin, ElasticOptions, ElasticTrainer
from elastic_runtime.transformers.steps.step_callbacks import CommitsLast
from tests.unit.transformers.hf_trainers import arguments, trainer

if TYPE_CHECKING:
    from pathlib import Path

RESTARTS = {"in_place": False, "every": "1h", "global_batch": 8}


class Usual(Trainer):
    """A trainer of somebody else's."""


def test_the_mixin_comes_first() -> None:
    class Right(ElasticMixin, Usual):
        pass

    assert Right.train is ElasticMixin.train
    with pytest.raises(UsageError, match=r"Wrong\(ElasticMixin, Usual\)"):

        class Wrong(Usual, ElasticMixin):
            pass


def test_the_commit_comes_after_all_callbacks(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.add_callback(TrainerCallback())
    assert isinstance(made.callback_handler.callbacks[-1], CommitsLast)


def test_options_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ElasticOptions"):
        trainer(tmp_path, {"every": "30s"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("auto_find_batch_size", True, "per_device_train_batch_size"),
        ("fsdp", "full_shard", r"in_place=False"),
        ("deepspeed", "zero.json", "DeepSpeed keeps the optimizer"),
        ("parallelism_config", object(), "leave it out"),
        ("enable_jit_checkpoint", True, "leave it out"),
        ("precompute_ref_log_probs", True, "before they are connected"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, name: str, value: Any, says: str) -> None:
    args = arguments(tmp_path)
    setattr(args, name, value)
    with pytest.raises(UsageError, match=says):
        ElasticTrainer(trainer(tmp_path).model, args)


def test_a_process_trains_once(tmp_path: Path) -> None:
    made = trainer(tmp_path, ElasticOptions(**RESTARTS))
    made.train()
    with pytest.raises(UsageError, match="second one"):
        made.train()


def test_a_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hyperparameter_search"):
        trainer(tmp_path).train(trial=object())


def test_what_a_job_begins_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path, ElasticOptions(**RESTARTS), save_strategy="steps", save_steps=3)
    assert made._elastic_beginning(True) is None
    made.train()
    own = tmp_path / "out" / "checkpoint-9"
    # It has checkpoints of ours now, and they count.
    assert made._elastic_beginning(str(own)) is None
    other = trainer(tmp_path, ElasticOptions(tmp_path / "new", **RESTARTS))
    assert other._elastic_beginning(True) == str(own)
    assert other._elastic_beginning(None) is None


def test_a_checkpoint_of_the_trainers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trainer(tmp_path, ElasticOptions(**RESTARTS), save_strategy="steps", save_steps=4)
    first.train()
    monkeypatch.setattr("elastic_runtime.transformers.elastic_mixin._has_trained", False)
    second = trainer(tmp_path, ElasticOptions(tmp_path / "new", **RESTARTS))
    result = second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert result.global_step == 9
    for name, value in first.model.state_dict().items():
        assert value.allclose(second.model.state_dict()[name], atol=1e-6)
