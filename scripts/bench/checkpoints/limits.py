"""What the machine could do at best: the same bytes, copied, written or read, and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import crc32c

from elastic_runtime.parts.tensor_memory import bytes_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

_WRITE = 4 << 20
_READ = 1 << 20


def copy(tensors: Sequence[torch.Tensor], into: torch.Tensor) -> None:
    """Copies tensors into memory that has been used before.

    Args:
        tensors: of floats.
        into: one-dimensional, at least as large as all of them.
    """
    at = 0
    for tensor in tensors:
        into[at : at + tensor.numel()].view(tensor.shape).copy_(tensor)
        at += tensor.numel()


def write(tensors: Sequence[torch.Tensor], path: Path) -> None:
    """Writes tensors into a new file and returns when it is durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        at = 0
        for tensor in tensors:
            memory = bytes_of(tensor)
            for begin in range(0, len(memory), _WRITE):
                at += os.pwrite(descriptor, memory[begin : begin + _WRITE], at)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, into: memoryview) -> None:
    """Reads a file and computes its checksum on the way.

    Args:
        path: of the file.
        into: memory as large as the file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for begin in range(0, len(into), _READ):
            part = into[begin : begin + _READ]
            os.preadv(descriptor, [part], begin)
            crc32c.crc32c(part)
    finally:
        os.close(descriptor)
