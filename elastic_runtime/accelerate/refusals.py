"""What an ``ElasticAccelerator`` cannot do, and says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils.data import IterableDataset, SequentialSampler

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context

if TYPE_CHECKING:
    from collections.abc import Mapping

# What accelerate takes from its launcher, or from an argument.
_NOT_IN_PLACE = {
    "ACCELERATE_USE_DEEPSPEED": ("deepspeed_plugin", "deepspeed_plugins"),
    "ACCELERATE_USE_FSDP": ("fsdp_plugin",),
    "ACCELERATE_USE_MEGATRON_LM": ("megatron_lm_plugin",),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("parallelism_config", "torch_tp_plugin"),
}
_REMEDY = (
    "train with elastic.DataLoader(data, global_batch_size=…), the samples of a step over all "
    "ranks, which needs no prepare(), and give it to the State"
)
NO_POSITION = (
    "backward() on samples of a loader that was prepared for evaluations: after a change of the "
    f"world nobody knows which of them have counted; {_REMEDY}"
)
ACCUMULATES = (
    "gradient_accumulation_steps= counts micro-batches of one world, and divides the loss by them; "
    "leave it out: elastic.DataLoader(…, at_once=8) cuts a step as each world needs it, and "
    "step.weight is what a piece counts"
)
SKIPS = (
    "skip_first_batches on an elastic.DataLoader: it begins where the job is, and samples would be "
    "left out; iterate over its steps()"
)
LOADS_IN_TRAIN = (
    "load_state() inside of train(world): the job goes on from its State; to "
    "begin with what accelerate has saved call it before elastic.run"
)
COMM_HOOK = (
    "a comm_hook= belongs to the ranks of one world and does not go on in place; leave it out, or "
    "call fresh_accelerator(in_place=False, …)"
)
OTHER_SETTINGS = (
    "fresh_accelerator was called with other settings than before, and what was prepared is kept; "
    "give the same ones each time, or none after the first call"
)


def check_in_place(settings: Mapping[str, Any]) -> None:
    """Refuses what cannot go on in place.

    Args:
        settings: of an ``Accelerator``.

    Raises:
        UsageError: there is something.
    """
    if dist.is_initialized() and not context().in_place:
        raise UsageError(
            "ranks are connected already, by the script or by accelerate for something that was "
            "made before (PartialState(), a tracker with @on_main_process); in place elastic.run "
            "connects them: call fresh_accelerator() first (a tracker can be added afterwards: "
            "accelerator.log_with.append(tracker)), or with in_place=False"
        )
    for variable, names in _NOT_IN_PLACE.items():
        asked = [name for name in names if settings.get(name) is not None]
        if os.environ.get(variable, "").lower() == "true":
            asked.append(f"{variable} (a distributed_type or a plugin of --accelerate-config)")
        if asked:
            raise UsageError(
                f"{asked[0]} does not go on in place; call fresh_accelerator(in_place=False, …) "
                "and elastic.run(train, state, in_place=False)"
            )


def check_evaluates(loader: Any) -> None:
    """Refuses a loader that can only be one for training, and has no position.

    Args:
        loader: a ``DataLoader`` without a sampler of ours.

    Raises:
        UsageError: it is one.
    """
    sampler = getattr(loader, "sampler", None)
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            "accelerator.prepare() got a loader of an IterableDataset, whose samples have no "
            "numbers; for training take elastic.ShardedStream, which needs no prepare(); for an "
            "evaluation take a map-style data set"
        )
    if not isinstance(sampler, SequentialSampler):
        kind = type(sampler).__name__
        raise UsageError(
            f"accelerator.prepare() got a loader with a {kind}, which cannot go on in another "
            f"world; {_REMEDY}. A loader for an evaluation must not shuffle"
        )
