"""The training data of a ``Trainer``: its ``DataLoader``, made anew with our sampler.

A step takes the same samples in every world. What a rank takes at once is bounded by
``per_device_train_batch_size``, as its memory is: with fewer ranks a step has more pieces.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchLoader
from transformers.trainer_pt_utils import LengthGroupedSampler, get_length_grouped_indices

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.messages import ENV_MOST_WORKERS
from elastic_runtime.trainers.epoch_batches import EpochBatches
from elastic_runtime.trainers.known_orders import order_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Trainer, TrainingArguments

    from elastic_runtime.data.epoch_order import Order


class TrainBatches:
    """Where a ``Trainer`` gets its training data from.

    Attributes:
        loader: how far the job is.
        batches: what is iterated over.
        global_batch: samples in a step, over all ranks.
        asked_for: what it would be if the job began now.
    """

    def __init__(self, trainer: Trainer, global_batch: int, recorded: int) -> None:
        """Makes the loader, and starts its processes.

        Args:
            trainer: whose data; no ranks are shared out in them, see ``as_it_is``.
            global_batch: what the user has said; 0: nothing.
            recorded: that of the job that is continued; 0: it begins.

        Raises:
            UsageError: the data cannot be continued in another world.
        """
        args = trainer.args
        with as_it_is(trainer):
            given = _checked(trainer.get_train_dataloader())
        if isinstance(given, DataLoader):
            self.global_batch = self.asked_for = given.global_batch_size
            self.batches = EpochBatches(given)
        else:
            self.asked_for = global_batch or _of_all_workers(args)
            self.global_batch = _decided(global_batch, recorded) or self.asked_for
            order, replacement = _order(given.sampler, len(given.dataset), self.global_batch)
            self.batches = EpochBatches(
                given,
                global_batch_size=self.global_batch,
                at_once=args.per_device_train_batch_size,
                seed=args.data_seed if args.data_seed is not None else args.seed,
                drop_last=given.drop_last,
                order=order,
                replacement=replacement,
            )
        self.loader = self.batches.loader

    @property
    def pieces(self) -> int:
        """Micro-batches in a step of the present world, but for the last one of an epoch."""
        return self.loader.batch_sampler.pieces_in(self.global_batch)

    def whole_epochs(self, accumulation: int) -> WholeEpoch:
        """What a ``Trainer`` counts its steps from.

        Args:
            accumulation: micro-batches that it takes for a step.
        """
        return WholeEpoch(self.batches.dataset, len(self.loader) * accumulation)


class WholeEpoch:
    """As long as an epoch, for a ``Trainer`` that computes its steps."""

    def __init__(self, dataset: Any, length: int) -> None:
        """Takes the length.

        Args:
            dataset: the user's.
            length: micro-batches in an epoch.
        """
        self.dataset = dataset
        self._length = length

    def __len__(self) -> int:
        return self._length


@contextmanager
def as_it_is(trainer: Trainer) -> Iterator[None]:
    """Within the block accelerate leaves a ``DataLoader`` as it is.

    It would share out the batches over the ranks, and our sampler does that already: half of the
    samples would never come.

    Args:
        trainer: whose accelerator.
    """
    accelerator = trainer.accelerator
    accelerator.prepare_data_loader = lambda loader, *_, **__: loader
    try:
        yield
    finally:
        del accelerator.prepare_data_loader


def _checked(given: Any) -> TorchLoader[Any] | DataLoader:
    if isinstance(given, DataLoader):
        return given
    if not isinstance(given, TorchLoader):
        raise UsageError(
            f"get_train_dataloader() gives a {type(given).__qualname__}; an elastic Trainer needs "
            "a torch.utils.data.DataLoader, as the position in one order of samples is what is kept"
        )
    if isinstance(given.dataset, IterableDataset) or not hasattr(given.dataset, "__len__"):
        raise UsageError(
            "train_dataset is iterable, or has no length: it is not known after a fault which "
            "samples have counted; give a map-style data set (of datasets: without streaming=True)"
        )
    if type(given.batch_sampler) is not BatchSampler or given.batch_size is None:
        raise UsageError(
            f"the training data come in the order of a {type(given.batch_sampler).__qualname__}, "
            "which is one for the ranks of one world; of train_sampling_strategy= take random, "
            "sequential or group_by_length, or have get_train_dataloader() give an "
            "elastic.DataLoader"
        )
    return given


def _decided(global_batch: int, recorded: int) -> int:
    """The global batch of the job, or what the user has said; 0: neither."""
    if global_batch and recorded and global_batch != recorded:
        raise UsageError(
            f"global_batch={global_batch}, and the job in this directory has steps of {recorded} "
            f"samples, which are fixed for it: give {recorded}, or another directory"
        )
    return recorded or global_batch


def _of_all_workers(args: TrainingArguments) -> int:
    """The samples of a step if all workers are there that the job may have."""
    most = int(os.environ.get(ENV_MOST_WORKERS) or os.environ.get("WORLD_SIZE") or 1)
    own: int = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return own * most


def _order(sampler: Any, size: int, batch: int) -> tuple[Order | None, bool]:
    if isinstance(sampler, LengthGroupedSampler):
        lengths = sampler.lengths
        return (lambda _, rng: get_length_grouped_indices(lengths, batch, generator=rng)), False
    try:
        return order_of(sampler, size)
    except LookupError as unknown:
        raise UsageError(
            f"the training data come in the order of a {unknown.args[0]}, which is not known for "
            "other worlds; of train_sampling_strategy= take random, sequential or group_by_length, "
            "or have get_train_dataloader() give an elastic.DataLoader"
        ) from None
