"""Small tensors as JSON: scores and sums, which go to new ranks and into checkpoints."""

from __future__ import annotations

from typing import Any

import torch

from elastic_runtime.worker.state.commit_image import tensor_bytes


def pack_tensor(tensor: torch.Tensor) -> list[Any]:
    """A small tensor as JSON: its type, its shape and its bytes."""
    plain = tensor.detach().cpu().contiguous()
    return [str(plain.dtype).removeprefix("torch."), list(plain.shape), tensor_bytes(plain).hex()]


def unpack_tensor(packed: list[Any]) -> torch.Tensor:
    """The tensor of ``pack_tensor``, on the CPU."""
    kind, shape, digits = packed
    empty = torch.empty(shape, dtype=getattr(torch, kind), device="cpu")
    if digits:
        data = torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8)
        empty.view(-1).view(torch.uint8).copy_(data)
    return empty
