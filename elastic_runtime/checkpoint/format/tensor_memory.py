"""Which part of a whole tensor this rank holds."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.system import torch_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def local_chunk(tensor: torch.Tensor) -> Chunk:
    """Which elements of a tensor are in this rank's memory."""
    if isinstance(tensor, DTensor):
        return Chunk(*torch_formats.dtensor_chunk(tensor))
    return Chunk.of(tuple(tensor.shape))


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
