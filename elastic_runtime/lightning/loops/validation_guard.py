"""Takes back what a validation has done to the weights, if a fault interrupts it.

Averages of the weights (EMA) are put into the model's place while it is validated, by a hook before
it and a hook after it. A fault in between would leave the average there, to be trained on.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning.pytorch import Trainer

_HOOKS = ("on_validation_start", "on_validation_epoch_start")


def average_models(trainer: Trainer) -> dict[str, torch.nn.Module]:
    """The averages that Lightning's own callbacks keep (``WeightAveraging``), by name."""
    found = [getattr(callback, "_average_model", None) for callback in trainer.callbacks]
    averages = [model for model in found if isinstance(model, torch.nn.Module)]
    return {f"average{number}": model for number, model in enumerate(averages)}


@contextmanager
def guarded(trainer: Trainer) -> Iterator[None]:
    """Within the block the model is validated.

    Args:
        trainer: whose hooks may exchange its weights; the copy is made only then.
    """
    kept = _copies(trainer) if _may_exchange(trainer) else []
    try:
        yield
    except BaseException:
        for tensor, copy in kept:
            tensor.data.copy_(copy)
        raise


def _may_exchange(trainer: Trainer) -> bool:
    module = trainer.lightning_module
    if any(is_overridden(hook, module, LightningModule) for hook in _HOOKS):
        return True
    return bool(average_models(trainer)) or any(
        is_overridden(hook, callback, Callback)
        for callback in trainer.callbacks
        if not type(callback).__module__.startswith("lightning.")
        for hook in _HOOKS
    )


def _copies(trainer: Trainer) -> list[tuple[torch.Tensor, Any]]:
    models = (trainer.lightning_module, *average_models(trainer).values())
    tensors = chain.from_iterable(chain(m.parameters(), m.buffers()) for m in models)
    return [(tensor, tensor.data.clone()) for tensor in tensors]
