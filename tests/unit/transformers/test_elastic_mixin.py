"""What an elastic Trainer refuses, what it begins with, and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers import ElasticMixin, ElasticOptions, ElasticTrainer
from elastic_runtime.transformers.kept_model import TrainedPart, kept_model
from elastic_runtime.transformers.steps.step_callbacks import CommitsLast, CountsFirst
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


def test_steps_are_counted_before_all_callbacks_and_committed_after_them(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.add_callback(TrainerCallback())
    assert isinstance(made.callback_handler.callbacks[0], CountsFirst)
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
    monkeypatch.setattr("elastic_runtime.training.run_loop._ran", False)
    second = trainer(tmp_path, ElasticOptions(tmp_path / "new", **RESTARTS))
    result = second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert result.global_step == 9
    for name, value in first.model.state_dict().items():
        assert value.allclose(second.model.state_dict()[name], atol=1e-6)


@pytest.mark.parametrize("options", [{"every": "often"}, {"global_batch": 0}, {"snapshots": "x"}])
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ElasticOptions(**options)


def test_checkpoints_are_in_the_output_directory_or_where_the_user_says() -> None:
    assert ElasticOptions().where("runs/x") == "runs/x/_elastic_checkpoints"
    assert ElasticOptions("s3://bucket/x").where("runs/x") == "s3://bucket/x"


def test_the_batch_is_recorded_beside_them(tmp_path: Any) -> None:
    ElasticOptions(tmp_path).record("elsewhere").write(24)
    assert (tmp_path / "transformers.json").exists()
    assert ElasticOptions(tmp_path).record(None).batch() == 24


def language_model(seed: int = 0) -> LlamaForCausalLM:
    """A very small one."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, num_attention_heads=2, **shape))


def with_adapter(seed: int = 0) -> torch.nn.Module:
    """The same with a LoRA adapter."""
    return get_peft_model(language_model(seed), LoraConfig(r=2, target_modules=["q_proj"]))


def test_a_model_is_kept_as_it_is() -> None:
    model = language_model()
    assert kept_model(model) == (model, "")


def test_of_an_adapter_only_what_is_trained() -> None:
    model = with_adapter()
    kept, _ = kept_model(model)
    assert isinstance(kept, TrainedPart)
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in kept.parameters()} == trained
    assert len(kept.state_dict()) == len(trained) == 2


def test_the_base_is_recognized() -> None:
    first = kept_model(with_adapter())[1]
    assert first
    assert kept_model(with_adapter())[1] == first
    assert kept_model(with_adapter(seed=1))[1] != first
