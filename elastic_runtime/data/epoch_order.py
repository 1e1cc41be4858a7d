"""What is in an epoch, and in which order: the user's ``order=``, checked, or a random one.

Which rank gets which of it is decided in ``sampler.py``. An order is kept while it is in use.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from elastic_runtime.data.sample_seeds import generator
from elastic_runtime.errors import UsageError
from elastic_runtime.parts.commit_image import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Order = Callable[[int, torch.Generator], Iterable[int]]


@dataclass(slots=True)
class _Kept:
    """The order of an epoch: ``of`` this seed and epoch."""

    of: tuple[int, int]
    order: torch.Tensor
    print: int | None = None


class Orders:
    """Says in which order the samples of an epoch come; the last answer is kept."""

    def __init__(self, size: int, order: Order | None, *, replacement: bool) -> None:
        """Takes the settings; nothing is ordered yet.

        Args:
            size: of the data set, in samples.
            order: see ``DataLoader``; None: a random permutation.
            replacement: a sample may come any number of times in an epoch.
        """
        self._size = size
        self._order = order
        self._replacement = replacement
        self._tried = False
        self._kept: _Kept | None = None

    def of(self, seed: int, epoch: int) -> torch.Tensor:
        """The indices of all samples of an epoch, int64.

        Raises:
            UsageError: the user's order is none.
        """
        kept = self._kept  # a thread that reads ahead may ask at the same time
        if kept is None or kept.of != (seed, epoch):
            kept = self._kept = _Kept((seed, epoch), self._draw(seed, epoch))
        return kept.order

    @property
    def size(self) -> int:
        """How many samples the data set has."""
        return self._size

    def length(self, seed: int, epoch: int) -> int:
        """How many samples an epoch has."""
        return len(self.of(seed, epoch)) if self._replacement else self._size

    def fingerprint(self, seed: int, epoch: int) -> int:
        """A number that differs where the order of an epoch does."""
        order = self.of(seed, epoch)
        kept = self._kept
        if kept is None or kept.order is not order:
            return zlib.crc32(tensor_bytes(order))
        if kept.print is None:
            kept.print = zlib.crc32(tensor_bytes(order))
        return kept.print

    def _draw(self, seed: int, epoch: int) -> torch.Tensor:
        if self._order is None:
            chance = generator("order", seed, epoch)
            return torch.randperm(self._size, generator=chance, device="cpu")
        drawn = _as_indices(self._order(epoch, generator("order", seed, epoch)), epoch)
        self._check(drawn, epoch)
        if not self._tried:
            # Ranks whose orders differ would train on the same samples and leave out others, and
            # nothing would show it. So the user's function is asked twice, once.
            again = _as_indices(self._order(epoch, generator("order", seed, epoch)), epoch)
            if not torch.equal(drawn, again):
                raise UsageError(
                    f"the order of epoch {epoch} is another one each time it is asked for; take "
                    "all randomness from the generator that the function is given"
                )
            self._tried = True
        return drawn

    def _check(self, drawn: torch.Tensor, epoch: int) -> None:
        size, where = self._size, f"the order of epoch {epoch}"
        if not len(drawn):
            raise UsageError(f"{where} is empty; give at least one sample")
        low, high = int(drawn.min()), int(drawn.max())
        if low < 0 or high >= size:
            raise UsageError(
                f"{where} names sample {low if low < 0 else high}, and the data set has {size}, "
                f"numbered from 0; give numbers below {size}"
            )
        if self._replacement:
            return
        counts = torch.bincount(drawn, minlength=size)
        if bool((counts != 1).any()):
            missing, repeated = int((counts == 0).sum()), int((counts > 1).sum())
            raise UsageError(
                f"{where} has {len(drawn)} samples of {size}: {missing} do not come, {repeated} "
                "more than once; give each sample once, or DataLoader(replacement=True)"
            )


def _as_indices(given: Iterable[int], epoch: int) -> torch.Tensor:
    try:
        # Tensors and arrays as they are; lists, ranges, samplers, generators one by one.
        known = hasattr(given, "__array__") or isinstance(given, torch.Tensor)
        tensor = torch.as_tensor(given if known else list(given), device="cpu")
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.empty(0, 0, device="cpu")
    if tensor.ndim == 1 and not len(tensor):
        return tensor.long()
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.ndim != 1 or not whole:
        raise UsageError(
            f"the order of epoch {epoch} is a {type(given).__qualname__} of something else than "
            "whole numbers; return the indices of the samples, in one row"
        )
    return tensor.to("cpu", torch.int64).clone()  # the caller may shuffle its own in place
