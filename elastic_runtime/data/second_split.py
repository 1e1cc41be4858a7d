"""Refuses that accelerate shares out, or skips, what a sampler of ours has decided already.

``Accelerator.prepare`` gives each rank every n-th batch of a loader, or has rank 0 read for all.
Of an ``ElasticBatchSampler`` each batch is one rank's share of a step: on two ranks half of the
samples would never come, and nothing would show it. And ``skip_first_batches`` would leave out
what is still to come, as a sampler of ours begins where the job is. Nothing of accelerate is
imported or changed for this: it shows in who asks the sampler for its batches.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

_ACCELERATE = "accelerate.data_loader"
# From the sampler through torch's loader to accelerate's there are six calls.
_CALLS = 12
_SKIP = ("SkipBatchSampler", "SkipDataLoader")
SKIPS = (
    "skip_first_batches on a loader with an ElasticBatchSampler: the sampler begins where the job "
    "is, and samples would be left out; iterate over the loader itself"
)


def refuse_second_split() -> None:
    """To be called when an iteration over a sampler begins.

    Raises:
        UsageError: it begins for accelerate, which would give this rank some of the batches only.
    """
    if _ACCELERATE not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_CALLS):
        if frame is None:
            return
        if frame.f_globals.get("__name__") == _ACCELERATE:
            owner: Any = frame.f_locals.get("self")
            if type(owner).__name__ in _SKIP and owner.skip_batches:
                raise UsageError(SKIPS)
            ranks = _splits_for(owner)
            if ranks > 1:
                raise UsageError(
                    f"Accelerator.prepare() would split this loader over {ranks} ranks, and its "
                    "ElasticBatchSampler has done so: most samples would never come. Take "
                    "fresh_accelerator() of elastic_runtime.accelerate, or leave the loader out of "
                    "prepare()"
                )
        frame = frame.f_back


def _splits_for(owner: Any) -> int:
    """For how many ranks something of accelerate splits what it iterates over."""
    kind = type(owner).__name__
    if kind == "BatchSamplerShard":
        return int(owner.num_processes)
    if kind == "DataLoaderDispatcher":
        return int(owner.state.num_processes)
    return 1
