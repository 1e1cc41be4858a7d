"""Lets torchtitan run on a CPU: to be imported before anything of torchtitan's.

torchtitan takes whatever is no accelerator for CUDA. Here it finds a device module for the CPU,
with what it asks of one, and parts of a config that do without CUDA.
"""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Any

import torch
import torch._utils
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule

if TYPE_CHECKING:
    from collections.abc import Callable


class CpuDevice(types.ModuleType):
    """What ``torch.cuda`` is to torchtitan."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: Any = None) -> str:
        return "CPU"

    def get_device_properties(self, device: Any = None) -> Any:
        return types.SimpleNamespace(total_memory=2**34)

    def current_device(self) -> int:
        return 0

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return {}

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...

    def empty_cache(self) -> None: ...


_device = CpuDevice("cpu_device")
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda kind: _device
if not hasattr(dist, "set_timeout"):  # torchtitan 0.3 is for a torch that has it
    dist.set_timeout = lambda timeout, group: _set_pg_timeout(timeout, group)


def for_cpu(config: Any) -> Any:
    """The same config with parts that work without CUDA.

    Args:
        config: of a torchtitan ``Trainer`` with a language model.
    """
    from torchtitan.models.common import attention

    spec = config.model_spec
    for _, _, parent, name in list(spec.model.traverse(attention.FlexAttention.Config)):
        setattr(parent, name, attention.ScaledDotProductAttention.Config())
    config.model_spec = dataclasses.replace(spec, parallelize_fn=_summing(spec.parallelize_fn))
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = "float32"
    config.optimizer.implementation = "foreach"
    config.parallelism.spmd_backend = "partial_dtensor"  # torch 2.13 cannot do the others
    return config


def small_model(words: int, width: int = 32) -> Any:
    """What torchtitan knows of a language model of two layers.

    Args:
        words: of its vocabulary.
        width: of its layers.
    """
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm

    spec = llama3.model_registry("debugmodel")
    spec.model = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=words,
        tok_embeddings=Embedding.Config(
            num_embeddings=words, embedding_dim=width, param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(param_init=llama3._NORM_INIT, normalized_shape=width),
        lm_head=Linear.Config(
            in_features=width, out_features=words, param_init=llama3._output_linear_init(width)
        ),
        layers=llama3._build_llama3_layers(
            n_layers=2,
            dim=width,
            n_heads=2,
            hidden_dim=64,
            rope=ComplexRoPE.Config(dim=width // 2, max_seq_len=128, theta=10000),
            attn_backend="flex",
        ),
    )
    return spec


def _summing(parallelize: Callable[..., Any]) -> Callable[..., Any]:
    """gloo cannot scale while it reduces, as NCCL can: FSDP has to do it itself."""

    def parallelized(model: Any, **given: Any) -> Any:
        model = parallelize(model, **given)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelized
