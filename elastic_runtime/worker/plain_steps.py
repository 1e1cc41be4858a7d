"""Notices a script whose steps this package knows nothing of, and that will regret it.

Most people do not write a loop, and a trainer's own resume trains on the wrong samples without a
word. So at its third step a worker looks once: whether a trainer is at work that there is an
adapter for, whether it trains alone although its job has other workers, and whether its samples
come in an order for one world. Nothing is imported for that, and nothing of a trainer is changed.
The agent makes hints of what it finds.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from elastic_runtime.events.state_events import DataShuffles, TrainerUnadapted
from elastic_runtime.worker.context import context
from elastic_runtime.worker.one_world_samplers import sampler_of_one_world

# The first step may be one that a library makes to have the optimizer allocate its memory.
_LOOKS_AT = 3

# A class of each trainer that has an adapter, and where it is; whose `Trainer` has an `Accelerator`
# comes before accelerate.
_CLASSES = (
    ("Lightning", "lightning.pytorch.trainer.trainer", "Trainer"),
    ("Lightning", "pytorch_lightning.trainer.trainer", "Trainer"),
    ("torchtitan", "torchtitan.trainer", "Trainer"),
    ("transformers", "transformers.trainer", "Trainer"),
    ("Accelerate", "accelerate.accelerator", "Accelerator"),
)


class _Watch:
    """Counts the steps of each optimizer, until one has made enough of them."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._is_over = False
        # It stays: one that goes while torch calls them all is an error for those after it.
        self._hook: Any = register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._is_over or torch.compiler.is_compiling():
            return
        count = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if count >= _LOOKS_AT:
            self._is_over = True
            self._steps.clear()
            _look()


def watch_plain_steps() -> None:
    """Has this process, and those that are forked from it, look at its third step."""
    _Watch()


def _look() -> None:
    here = context()
    if here.rank or not here.has_agent or here.knows_steps:
        return
    trainer = trainer_at_work()
    alone = int(os.environ.get("WORLD_SIZE") or 1) > 1 and _trains_alone(trainer)
    if trainer or alone:
        here.note_once(TrainerUnadapted(trainer, alone))
    if sampler := sampler_of_one_world(training=False):
        here.note_once(DataShuffles(sampler))


def _trains_alone(trainer: str) -> bool:
    """Whether no other process has a part in the steps of this one."""
    if not torch.distributed.is_initialized():
        return True
    if trainer not in ("Accelerate", "transformers"):
        return False
    # Not told that processors are meant, accelerate connects the ranks and then does without them.
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    return getattr(state, "_shared_state", {}).get("num_processes") == 1


def trainer_at_work() -> str:
    """The trainer that this process has made, if there is an adapter for it; "" for none.

    It takes as long as a look at each object of the process, some 0.1 s where there are a million,
    and only where such a package is loaded.
    """
    loaded = [
        (trainer, found)
        for trainer, module, name in _CLASSES
        if isinstance(found := getattr(sys.modules.get(module), name, None), type)
    ]
    if not loaded:
        return ""
    kinds = {type(one) for one in gc.get_objects()}
    at_work = (t for t, found in loaded if any(issubclass(kind, found) for kind in kinds))
    return next(at_work, "")
