"""The memory of tensors: their bytes, copies of them, and how values come back into all kinds.

torch refuses to write into a tensor that was expanded, as several of its elements share one place,
and into one that was made for inference, unless it is in that mode.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch


def sharded_kind() -> Any:
    """The class of tensors of which a rank may hold a part; none if nothing has imported it."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor is in this rank's memory; not a copy."""
    return tensor.to_local() if isinstance(tensor, sharded_kind()) else tensor


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, in place; NumPy is not needed for that.

    Args:
        tensor: contiguous, on the CPU.

    Returns:
        A one-dimensional view of its memory, which can be written, and keeps it alive.
    """
    if not tensor.nbytes:
        return memoryview(bytearray())
    memory: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor
    return memoryview(memory).cast("B")


class TensorCopies:
    """Copies of tensors, in memory that is kept from one time to the next."""

    def __init__(self) -> None:
        self._live: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []

    def take(self, tensors: list[torch.Tensor]) -> None:
        """Copies these tensors, whatever was copied before."""
        if not tensors and not self._kept:
            return
        tensors = [_core(tensor) for tensor in tensors]
        copies = self._kept
        if len(copies) != len(tensors) or not all(map(_same_form, copies, tensors)):
            copies = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
        self._live, self._kept = tensors, copies
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(copies, tensors)

    def give_back(self) -> None:
        """Writes the copies back into the tensors that they were taken of."""
        pairs = list(zip(self._live, self._kept, strict=True))
        plain = [(live, kept) for live, kept in pairs if not live.is_inference()]
        with torch.no_grad():
            if plain:
                torch._foreach_copy_([live for live, _ in plain], [kept for _, kept in plain])
            for live, kept in pairs:
                if live.is_inference():
                    write(live, kept)


def write(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies values into a tensor, also into one that torch refuses to write to.

    Args:
        target: may be expanded, or made for inference.
        source: of the same shape.
    """
    # In this order: leaving the inference mode turns gradients on, and a leaf that needs them
    # could not be written to.
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        _core(target).copy_(source[tuple(map(slice, _core(target).shape))])


def receives(tensor: torch.Tensor) -> bool:
    """Whether what comes from another rank may be put straight into the memory of a tensor."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_inference()


def _core(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor that has each of its elements in memory once: what expanded it is undone.

    Nothing can be written to several elements in one place.
    """
    if tensor.layout is torch.strided and 0 in tensor.stride():
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        return tensor[tuple(slice(min(size, 1) if not stride else size) for size, stride in sizes)]
    return tensor


def _same_form(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return bool(same)
