"""Tells accelerate which ranks there are.

It keeps that in dictionaries that all its objects of a process share, ``Accelerator`` and
``TrainingArguments`` among them. They are filled when the first object is made, and are changed
here when the world changes: so nothing that refers to accelerate has to be made again.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def stand_alone(rank: int, local_rank: int) -> None:
    """No other ranks are connected: nothing is shared out, and nothing waits for others.

    Args:
        rank: of this process, for what only rank 0 does.
        local_rank: the same on its node.
    """
    _set(
        distributed_type=DistributedType.NO,
        num_processes=1,
        process_index=rank,
        local_process_index=local_rank,
        backend=None,
    )


def enter(rank: int, size: int, local_rank: int) -> None:
    """The ranks of a world are connected, or about to be.

    Args:
        rank: of this process.
        size: how many ranks there are.
        local_rank: of this process, on its node.
    """
    device = getattr(PartialState._shared_state.get("device"), "type", "cpu")
    name = {"cpu": "MULTI_CPU", "cuda": "MULTI_GPU"}.get(device, f"MULTI_{device.upper()}")
    _set(
        distributed_type=getattr(DistributedType, name, DistributedType.MULTI_GPU),
        num_processes=size,
        process_index=rank,
        local_process_index=local_rank,
        backend="nccl" if device == "cuda" else "gloo",
    )
    _leave_loaders()


@contextmanager
def without_launcher() -> Iterator[None]:
    """Within the block accelerate finds no launcher in the environment, and connects nothing."""
    kept = {name: os.environ.pop(name) for name in _LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def own_device() -> torch.device:
    """The device of this worker, and chooses it for CUDA."""
    device: torch.device = PartialState._shared_state["device"]
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    _set(device=device)
    return device


def _set(**values: Any) -> None:
    if not PartialState._shared_state:
        return  # nothing has been asked of accelerate yet, or it was told to forget it
    PartialState._shared_state.update(values)
    if AcceleratorState._shared_state:
        AcceleratorState._shared_state.update(values)


def _leave_loaders() -> None:
    """Forgets the loaders that were iterated over when the last world ended."""
    if GradientState._shared_state:
        gradients = GradientState()
        gradients.dataloader_references = [None]
        gradients._set_sync_gradients(True)
