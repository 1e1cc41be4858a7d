"""What of a model must not be lost: all of it, or of a PEFT model what is trained of it.

The base of a PEFT model is frozen, and every process loads it by itself: to keep it would make a
checkpoint of an adapter as large as the whole model, and a rank that joins would be sent what it
has already.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from transformers.trainer import _is_peft_model

from elastic_runtime.parts.commit_image import tensor_bytes

_LOOKED_AT = 64  # of each frozen parameter, for the fingerprint


class TrainedPart(nn.Module):  # type: ignore[misc]  # torch has no types
    """The parameters of a model that are trained, and its buffers, under their own names."""

    def __init__(self, model: nn.Module) -> None:
        """Refers to them.

        Args:
            model: whose.
        """
        super().__init__()
        saved = model.state_dict(keep_vars=True)
        for name, tensor in saved.items():
            flat = name.replace(".", "/")
            if isinstance(tensor, nn.Parameter):
                if tensor.requires_grad:
                    self.register_parameter(flat, tensor)
            elif torch.is_tensor(tensor) and not tensor.requires_grad:
                self.register_buffer(flat, tensor)


def kept_model(model: nn.Module) -> tuple[nn.Module, str]:
    """What is kept of a model, and what the rest is like.

    Args:
        model: that of a ``Trainer``, without wrappers.

    Returns:
        The module to keep, and a fingerprint of the parameters that are not in it, "" if all are.
    """
    if not _is_peft_model(model):
        return model, ""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode())
            digest.update(_sample(parameter.detach()))
    return TrainedPart(model), digest.hexdigest()[:16]


def _sample(tensor: torch.Tensor) -> Any:
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _LOOKED_AT)
    return tensor_bytes(flat[::step].cpu().contiguous())
