"""Notices samples that come in an order of torch's, which is for the ranks of one world.

Such a sampler begins anew with each change of the world, so that samples count twice or not at all.
It is noticed when it is iterated over; nothing is looked for.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from elastic_runtime.worker.step_source import is_training

if TYPE_CHECKING:
    from collections.abc import Callable

# The newest, by whether a State was being trained then.
_seen: dict[bool, str] = {}


def watch_samplers() -> None:
    """Has this process notice those of torch; its data package is imported."""
    from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

    for kind in (DistributedSampler, RandomSampler, WeightedRandomSampler):
        kind.__iter__ = _noticed(kind.__iter__)


def sampler_of_one_world(*, training: bool) -> str:
    """The class of such a sampler that was iterated over last; "" for none.

    Args:
        training: while a State was trained, and not beside it, as in an evaluation; else where
            nobody knows what it was for.
    """
    return _seen.get(training, "")


def _noticed(iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(iterate)
    def noticed(sampler: Any) -> Any:
        _seen[is_training()] = type(sampler).__name__
        return iterate(sampler)

    return noticed
