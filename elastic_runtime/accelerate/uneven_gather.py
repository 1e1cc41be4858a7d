"""Gathers what ranks have of training data, where their shares differ by a sample.

accelerate gathers tensors of one shape, and makes the shares of its own loaders equal; of other
shapes gloo ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather, gather_object, recursively_apply

from elastic_runtime.data.sampler import share_of
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def shares_of(samples: int, world: int) -> list[int]:
    """How many of a batch's samples each rank has.

    Args:
        samples: of all ranks.
        world: how many ranks there are.
    """
    bounds = [share_of(samples, rank, world) for rank in range(world)]
    return [end - first for first, end in bounds]


def gather_shares(data: Any, shares: Sequence[int], rank: int, *, as_objects: bool) -> Any:
    """What all ranks have of their samples, each once.

    Args:
        data: tensors with one row for each sample of this rank, in whatever containers; or objects.
        shares: how many samples each rank has.
        rank: of this process.
        as_objects: whether tensors are to be gathered as objects.

    Raises:
        UsageError: a tensor has another number of rows than this rank has samples.
    """
    if as_objects or not _all_tensors(data):
        return gather_object(data if shares[rank] else [])
    return recursively_apply(lambda tensor: _gathered(tensor, shares, rank), data)


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


def _gathered(tensor: torch.Tensor, shares: Sequence[int], rank: int) -> Any:
    if tensor.ndim == 0:
        return gather(tensor)
    # A rank without a share works on a sample of another one's.
    if len(tensor) != max(1, shares[rank]):
        raise UsageError(
            f"gather_for_metrics() got {len(tensor)} rows, and this rank has {shares[rank]} of "
            f"the batch's {sum(shares)} samples; for one value of each rank use gather()"
        )
    return _padded(tensor[: shares[rank]], shares)


def _padded(tensor: torch.Tensor, rows: Sequence[int]) -> Any:
    """The rows of all ranks, of which each has so many."""
    most = max(rows)
    if len(set(rows)) == 1:
        return gather(tensor.contiguous())
    padded = tensor.new_zeros((most, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    wanted = torch.cat([torch.arange(n) + rank * most for rank, n in enumerate(rows)])
    return gather(padded)[wanted.to(tensor.device)]


def _all_tensors(data: Any) -> bool:
    try:
        recursively_apply(lambda tensor: tensor, data, error_on_other_type=True)
    except TypeError:
        return False
    return True
