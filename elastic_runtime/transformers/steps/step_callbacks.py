"""The callbacks that an elastic ``Trainer`` has of its own: the first and the last one of a step.

They also remember, in each checkpoint of the ``Trainer``'s own, where in our order of samples it
was made: a job that begins with it can go on exactly there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

if TYPE_CHECKING:
    from transformers import TrainerState

    from elastic_runtime.transformers.elastic_mixin import ElasticMixin
    from elastic_runtime.transformers.steps.train_batches import TrainBatches

logger = logging.get_logger("transformers.elastic")

_POSITION = "elastic_loader.json"


class _OfJob(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """One that belongs to the job of a trainer."""

    def __init__(self, trainer: ElasticMixin) -> None:
        """Refers to it.

        Args:
            trainer: whose job.
        """
        self._trainer = trainer


class CountsFirst(_OfJob):
    """Counts epochs by steps before anybody looks: micro-batches are not the same everywhere."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step is complete."""
        if self._trainer._elastic_job is not None:
            self._trainer._elastic_job.count_epochs()


class CommitsLast(_OfJob):
    """Commits each step once all others have done with it."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step is complete; what ``commit`` raises ends the round."""
        if self._trainer._elastic_job is not None:
            self._trainer._elastic_job.commit()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The ``Trainer`` has made a checkpoint of its own."""
        job = self._trainer._elastic_job
        if job is not None and args.should_save:
            folder = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            with open(os.path.join(folder, _POSITION), "w") as file:
                json.dump(job.data.loader.state_dict(), file)


def place_of(callback: TrainerCallback) -> int:
    """Where a callback belongs among the others, to sort them by.

    Args:
        callback: that.
    """
    return isinstance(callback, CommitsLast) - isinstance(callback, CountsFirst)


def begin_at(checkpoint: str, state: TrainerState, data: TrainBatches) -> None:
    """Goes to where a checkpoint of the ``Trainer``'s own was made.

    Args:
        checkpoint: its directory.
        state: what the ``Trainer`` has loaded of it.
        data: whose loader goes there.

    Raises:
        UsageError: it was made with other data, in the middle of an epoch.
    """
    try:
        with open(os.path.join(checkpoint, _POSITION)) as file:
            position = json.load(file)
    except (OSError, ValueError):
        _begin_near(state, data)
    else:
        data.loader.load_state_dict(position)


def _begin_near(state: TrainerState, data: TrainBatches) -> None:
    """The same for a checkpoint of a plain ``Trainer``, whose samples came in another order."""
    whole = len(data.loader)
    epoch, part = divmod(state.epoch, 1)
    steps = round(part * whole)
    epoch, steps = int(epoch) + steps // whole, steps % whole
    data.loader.go_to(epoch, steps * data.global_batch)
    if steps:
        logger.warning(
            "elastic: the checkpoint was made by a Trainer without elastic_runtime, in the middle "
            "of epoch %d, whose samples came in another order there: in the rest of this epoch "
            "some come for the second time, and as many not at all. From the next epoch on each "
            "sample comes once",
            epoch,
        )
