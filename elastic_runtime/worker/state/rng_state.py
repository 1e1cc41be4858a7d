"""The random generators of this process: remembered at a commit, put back after a fault."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class _Kept:
    cpu: torch.Tensor
    cuda: list[torch.Tensor]
    python: tuple[Any, ...]
    numpy: dict[str, Any] | None


class RandomGenerators:
    """The global generators of PyTorch (CPU and every GPU), Python and NumPy.

    NumPy and CUDA count only where the program has loaded or initialised them by itself.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def snapshot(self) -> None:
        """Remembers where all generators are now."""
        numpy_random = sys.modules.get("numpy.random")
        self._kept = _Kept(
            cpu=torch.default_generator.get_state(),
            cuda=[generator.get_state() for generator in _cuda()],
            python=random.getstate(),
            numpy=numpy_random.get_state(legacy=False) if numpy_random else None,
        )

    def restore(self) -> None:
        """Puts all generators back to where they were at the last snapshot, if there is one."""
        kept = self._kept
        if kept is None:
            return
        torch.default_generator.set_state(kept.cpu)
        for generator, state in zip(_cuda(), kept.cuda, strict=False):
            generator.set_state(state)
        random.setstate(kept.python)
        if kept.numpy is not None:
            sys.modules["numpy.random"].set_state(kept.numpy)


def _cuda() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()
