"""The training data of a ``Trainer``: its ``DataLoader``, made anew with our sampler.

A step takes the same samples in every world. What a rank takes at once is bounded by
``per_device_train_batch_size``, as its memory is: with fewer ranks a step has more pieces.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from transformers.trainer_pt_utils import LengthGroupedSampler, get_length_grouped_indices

from elastic_runtime.data.sampler import ElasticBatchSampler
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
        sampler: how far the job is.
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
        self._at_once = args.per_device_train_batch_size
        size = len(given.dataset)
        if isinstance(given.batch_sampler, ElasticBatchSampler):
            self.sampler = given.batch_sampler
            self.global_batch = self.asked_for = self.sampler.batch_sizes[0]
            self._at_once = 0  # it says itself how much a rank takes
        else:
            self.asked_for = global_batch or _of_all_workers(args)
            self.global_batch = _decided(global_batch, recorded) or self.asked_for
            order, replacement = _order(given.sampler, size, self.global_batch)
            if given.drop_last:
                order, replacement = _whole_batches(order, size, self.global_batch), True
            seed = args.data_seed if args.data_seed is not None else args.seed
            self.sampler = ElasticBatchSampler(
                given.dataset,
                self.global_batch,
                seed=seed,
                order=order,
                replacement=replacement,
            )
        self.batches = EpochBatches(given, self.sampler)

    @property
    def pieces(self) -> int:
        """Micro-batches in a step of the present world, but for the last one of an epoch."""
        whole, micro = self.sampler.batch_sizes
        return -(-whole // micro)

    def enter(self, world_size: int) -> None:
        """Other ranks share the batches from now on.

        Args:
            world_size: how many.
        """
        if self._at_once:
            micro = min(self._at_once * world_size, self.global_batch)
            self.sampler.batch_sizes = self.global_batch, micro
        self.batches.enter()

    def whole_epochs(self, accumulation: int) -> WholeEpoch:
        """What a ``Trainer`` counts its steps from.

        Args:
            accumulation: micro-batches that it takes for a step.
        """
        return WholeEpoch(self.batches.dataset, self.sampler.steps_in_epoch * accumulation)


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


def _checked(given: Any) -> DataLoader[Any]:
    if not isinstance(given, DataLoader):
        raise UsageError(
            f"get_train_dataloader() gives a {type(given).__qualname__}; an elastic Trainer needs "
            "a torch.utils.data.DataLoader, as the position in one order of samples is what is kept"
        )
    if isinstance(given.dataset, IterableDataset) or not hasattr(given.dataset, "__len__"):
        raise UsageError(
            "train_dataset is iterable, or has no length: it is not known after a fault which "
            "samples have counted; give a map-style data set (of datasets: without streaming=True)"
        )
    ours = isinstance(given.batch_sampler, ElasticBatchSampler)
    if not ours and (type(given.batch_sampler) is not BatchSampler or given.batch_size is None):
        raise UsageError(
            f"the training data come in the order of a {type(given.batch_sampler).__qualname__}, "
            "which is one for the ranks of one world; of train_sampling_strategy= take random, "
            "sequential or group_by_length, or give an elastic.ElasticBatchSampler as batch_sampler"
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
            "or give an elastic.ElasticBatchSampler as batch_sampler"
        ) from None


def _whole_batches(order: Order | None, size: int, batch: int) -> Order:
    """Leaves out the last samples of an epoch, if they are no whole batch."""
    if size < batch:
        raise UsageError(
            f"dataloader_drop_last leaves nothing of {size} samples with steps of {batch}; take a "
            "smaller batch, or keep the last one"
        )

    def whole(epoch: int, rng: torch.Generator) -> Any:
        drawn = torch.randperm(size, generator=rng) if order is None else order(epoch, rng)
        every = list(drawn)
        return every[: len(every) - len(every) % batch]

    return whole
