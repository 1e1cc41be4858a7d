"""Gathers what ranks have of training data, where their shares differ by a sample.

accelerate gathers tensors of one shape, and makes the shares of its own loaders equal; of other
shapes gloo ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather, recursively_apply

if TYPE_CHECKING:
    from collections.abc import Sequence


def gather_rows(data: Any, world: int) -> Any:
    """What all ranks have, whatever number of rows each has.

    Args:
        data: tensors, in whatever containers.
        world: how many ranks there are.
    """

    def gathered(tensor: torch.Tensor) -> Any:
        if tensor.ndim == 0:
            return gather(tensor)
        own = torch.tensor([len(tensor)], device=tensor.device)
        return _padded(tensor, gather(own).tolist())

    if world == 1:
        return gather(data)
    return recursively_apply(gathered, data, error_on_other_type=True)


def _padded(tensor: torch.Tensor, rows: Sequence[int]) -> Any:
    """The rows of all ranks, of which each has so many."""
    most = max(rows)
    if len(set(rows)) == 1:
        return gather(tensor.contiguous())
    padded = tensor.new_zeros((most, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    wanted = torch.cat([torch.arange(n) + rank * most for rank, n in enumerate(rows)])
    return gather(padded)[wanted.to(tensor.device)]
