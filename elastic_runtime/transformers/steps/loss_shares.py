"""What the loss of a micro-batch counts, so that a step is one of all its samples.

A ``Trainer`` has two kinds of losses. Either it is a sum by the number of labels that the whole
step has on all ranks; that is right however the step is split over ranks and micro-batches. Or it
is a mean of the micro-batch, which has to count as much as the micro-batch has samples. Which one
it is the ``Trainer`` concludes from ``forward``; here it shows, see ``CountedLabels``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import unwrap_peft_model

from elastic_runtime.transformers.steps.counted_labels import CountedLabels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Trainer

    from elastic_runtime.trainers.epoch_batches import EpochBatches

_NO_LABEL = -100  # what transformers leaves out of a loss


class LossShares:
    """Those of one ``Trainer``.

    Attributes:
        weight: what the newest micro-batch has counted.
    """

    weight = 1.0

    def __init__(self, trainer: Trainer, batches: EpochBatches) -> None:
        """Begins a step.

        Args:
            trainer: whose losses.
            batches: its training data.
        """
        self._trainer = trainer
        self._batches = batches
        self._piece = 0
        self._inputs: dict[str, Any] = {}  # of the micro-batch that is under way
        self._labels: CountedLabels | None = None  # how many the step has; None: not watched
        self._is_step = self._counted = self._is_trusted = False

    @contextmanager
    def next_step(self) -> Iterator[None]:
        """Within the block the ``Trainer`` takes the micro-batches of a step, and counts labels."""
        self._piece = 0
        self._is_step = True
        try:
            yield
        finally:
            self._is_step = False

    def countable(self, batches: list[Any]) -> list[Any]:
        """Micro-batches whose labels are to be counted.

        A rank without a sample takes one that another rank has as well: its labels do not count.

        Args:
            batches: of this rank, in the order that they come in; of a step, or of an evaluation.
        """
        if not self._is_step:
            return batches
        weights = self._batches.step.weights
        return [
            batch if weight else _without_labels(batch)
            for batch, weight in zip(batches, weights, strict=True)
        ]

    @contextmanager
    def micro_batch(self, inputs: Any, labels: Any) -> Iterator[Any]:
        """Within the block the ``Trainer`` works on one.

        Args:
            inputs: that.
            labels: how many the whole step has on all ranks; None: they are not counted.

        Yields:
            What to give the ``Trainer`` for ``labels``.
        """
        # A model that is compiled would be compiled for the wrapper: it is believed.
        self._counted = labels is not None
        self._is_trusted = self._counted and self._trainer.args.torch_compile
        watched = self._counted and not self._is_trusted
        self._labels = CountedLabels.of(labels) if watched else None
        self._inputs = dict(inputs)
        self.weight = 1.0
        yield self._labels if watched else labels
        self._inputs = {}
        self._piece += 1

    def decide(self) -> float:
        """What the loss of the micro-batch is multiplied with, once it is known."""
        trainer, weights = self._trainer, self._batches.step.weights
        pieces: int = trainer.current_gradient_accumulation_steps
        share, labels = weights[self._piece], self._labels
        divided = pieces if self._is_divided else 1
        if not share:  # a sample of another rank's
            self.weight = 0.0
        elif labels is None:
            self.weight = 1.0 if self._is_trusted else share * divided
        elif labels.uses:
            self.weight = 1.0 if trainer.args.average_tokens_across_devices else sum(weights)
        elif trainer.label_smoother is not None:  # in older versions it is a mean over its labels
            ranks: int = trainer.args.world_size
            self.weight = self._own_labels() / max(int(labels.detach()), 1) * ranks * divided
        else:
            self.weight = share * divided
        return self.weight

    @property
    def _is_divided(self) -> bool:
        """Whether the ``Trainer`` divides a loss by the number of micro-batches."""
        trainer = self._trainer
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            counts = trainer.model_accepts_loss_kwargs and self._counted
            scaled = counts or trainer.compute_loss_func is not None
        return not scaled

    def unmultiplied(self, loss: Any, labels: Any) -> Any:
        """A loss without the factor that the ``Trainer`` gives to sums by labels.

        Args:
            loss: what its ``compute_loss`` gave.
            labels: what was given to it.
        """
        if not isinstance(labels, CountedLabels) or labels.uses:
            return loss
        trainer = self._trainer
        may = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        multiplied = trainer.args.average_tokens_across_devices and may
        return loss / trainer.args.world_size if multiplied else loss

    def _own_labels(self) -> int:
        """How many labels a mean over this rank's micro-batch is about."""
        labels = self._inputs["labels"]
        name = unwrap_peft_model(self._trainer.model)._get_name()
        if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            labels = labels[..., 1:]
        return int(labels.ne(_NO_LABEL).sum())


def _without_labels(batch: Any) -> Any:
    """A copy of a micro-batch in which no label counts."""
    hidden = {
        name: torch.full_like(batch[name], _NO_LABEL)
        for name in ("labels", "shift_labels")
        if torch.is_tensor(batch.get(name))
    }
    return {**batch, **hidden}
