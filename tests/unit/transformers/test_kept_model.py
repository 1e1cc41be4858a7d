"""Of a PEFT model its adapter is kept, and the base is only looked at."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from elastic_runtime.transformers.kept_model import TrainedPart, kept_model


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
