"""The memory of tensors: which part of a whole one this rank holds, and its bytes."""

from __future__ import annotations

import ctypes
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.system import torch_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor is in this rank's memory; not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_chunk(tensor: torch.Tensor) -> Chunk:
    """Which elements of a tensor are in this rank's memory."""
    if isinstance(tensor, DTensor):
        return Chunk(*torch_formats.dtensor_chunk(tensor))
    return Chunk.of(tuple(tensor.shape))


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


@contextmanager
def without_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage, while millions of objects are made that all stay.

    It would look at all of them again and again: half of the time that it takes to read what
    thousands of ranks have written.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
