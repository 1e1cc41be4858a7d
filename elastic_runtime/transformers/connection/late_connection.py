"""Has ``TrainingArguments`` leave it to the trainer to connect the ranks.

They do so themselves when they are made, and the ranks of one world are no use to a job whose world
changes: ``elastic.run`` connects them, again after each change. And a replacement makes its
arguments while the others train, who would have to wait for it.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState
from transformers import Trainer, TrainingArguments

from elastic_runtime.accelerate.accelerate_world import (
    own_device,
    stand_alone,
    without_launcher,
)
from elastic_runtime.trainers.turns import turn
from elastic_runtime.worker.context import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

_connects: Callable[[TrainingArguments], torch.device] = TrainingArguments._setup_devices.func
_turns = threading.local()
_LATE = "_elastic_connects_late"


def connect_late() -> None:
    """Changes what ``TrainingArguments`` and ``Trainer`` do; to be called once."""
    devices = cached_property(_set_up_alone)
    devices.__set_name__(TrainingArguments, "_setup_devices")
    TrainingArguments._setup_devices = devices
    TrainingArguments.main_process_first = _in_turn(TrainingArguments.main_process_first)
    PartialState.main_process_first = _in_turn(PartialState.main_process_first)
    PartialState.local_main_process_first = _in_turn(PartialState.local_main_process_first)
    create = Trainer.create_accelerator_and_postprocess

    @wraps(create)
    def create_connected(trainer: Trainer) -> None:
        if not getattr(trainer, "_elastic_connects_itself", False):
            connect(trainer.args)
        create(trainer)

    Trainer.create_accelerator_and_postprocess = create_connected


def connect(args: TrainingArguments) -> None:
    """Connects the ranks of the launcher, as the arguments would have done it themselves.

    Args:
        args: of a trainer that does not go on in place.
    """
    if "RANK" in os.environ and not dist.is_initialized():
        args.__dict__["_setup_devices"] = _connects(args)


def were_made_late(args: TrainingArguments) -> bool:
    """Whether arguments were made after ``connect_late``, and have connected nothing.

    Args:
        args: those of a trainer.
    """
    return _LATE in vars(args)


def _set_up_alone(args: TrainingArguments) -> torch.device:
    """The device of this worker; no ranks are connected."""
    if dist.is_initialized():  # somebody has connected them before, and it is not for elastic.run
        return _connects(args)
    AcceleratorState._reset_state(reset_partial_state=True)
    with without_launcher():
        _connects(args)
    vars(args)[_LATE] = True
    args._n_gpu = min(args._n_gpu, 1)  # a worker has one, whatever else the machine has
    stand_alone(int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0)))
    return own_device()


def _in_turn(waits: Callable[..., AbstractContextManager[None]]) -> Callable[..., Any]:
    """What has one process go first, where no ranks are connected: one goes after the other."""

    @wraps(waits)
    @contextmanager
    def in_turn(self: Any, *args: Any, **named: Any) -> Iterator[None]:
        alone = PartialState._shared_state.get("num_processes") == 1 and "RANK" in os.environ
        if not alone:
            with waits(self, *args, **named):
                yield
            return
        nested = getattr(_turns, "taken", False)
        _turns.taken = True
        try:
            with nullcontext() if nested else turn(f"{context().run}-data"):
                yield
        finally:
            _turns.taken = nested

    return in_turn
