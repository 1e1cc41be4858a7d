"""The training data of a ``Trainer``: the user's ``DataLoader``, made anew with our sampler.

Lightning's loops count batches, and its own samplers split the data over the ranks of one world.
Here a batch is one of all ranks, of a size that is fixed for the job: so the count means the same
in every world, and the sampler's position is that of the loops.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.epoch_batches import EpochBatches
from elastic_runtime.trainers.known_orders import in_sequence, order_of

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from elastic_runtime.data.epoch_order import Order

_OWN_SAMPLER = (
    "give it DataLoader(data, batch_sampler=elastic.ElasticBatchSampler(data, batch_size=…, "
    "order=…)), whose batch_size is that of all ranks together"
)


class TrainData(_DataLoaderSource):  # type: ignore[misc]  # Lightning is not typed here
    """Where a fit loop gets its training data from.

    Attributes:
        sampler: known once the loader was asked for.
    """

    sampler: ElasticBatchSampler

    def __init__(self, source: _DataLoaderSource, trainer: Trainer, settings: DataSettings) -> None:
        """Takes the place of Lightning's own source.

        Args:
            source: whose loader is to be replaced.
            trainer: of the loop.
            settings: what the user has said about batches and order.
        """
        super().__init__(source.instance, source.name)
        self._trainer = trainer
        self._settings = settings
        self._batches: EpochBatches | None = None

    def dataloader(self) -> EpochBatches:
        """The data, the same object each time.

        Raises:
            UsageError: the user's loader cannot be continued in another world.
        """
        if self._batches is None:
            given = self._checked(super().dataloader())
            self.sampler = self._sampler_for(given)
            self._batches = EpochBatches(given, self.sampler)
        return self._batches

    @property
    def batches(self) -> EpochBatches:
        """The data, which were asked for before."""
        assert self._batches is not None
        return self._batches

    def take_batch_sizes(self, sizes: tuple[int, int]) -> None:
        """Has these global batches from now on: those of the job that this process joins.

        Args:
            sizes: samples in a batch of all ranks, with all that is accumulated, and in a
                micro-batch.
        """
        self.sampler.batch_sizes = sizes
        if self._trainer.lightning_module.automatic_optimization:
            self._trainer.accumulate_grad_batches = sizes[0] // sizes[1]

    def count_pieces(self, number: int) -> None:
        """The commit that follows is about so many micro-batches.

        Args:
            number: of them.
        """
        micro = self.sampler.batch_sizes[1]
        self.sampler.batch_sizes = number * micro, micro

    def begin_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch: the one before may have ended early.

        Args:
            epoch: which, from 0.
        """
        sampler = self.sampler
        if (sampler.epoch, sampler.cursor) != (epoch, 0):
            sampler.epoch, sampler.cursor = epoch, 0
        micro = sampler.batch_sizes[1]
        sampler.batch_sizes = micro * self._trainer.accumulate_grad_batches, micro

    def _checked(self, given: object) -> DataLoader[Any]:
        if not isinstance(given, DataLoader):
            raise UsageError(
                f"the training data are a {type(given).__qualname__}; with elastic_runtime."
                "lightning they must be one torch.utils.data.DataLoader, as the position in one "
                "order of samples is what is kept: join several data sets in one (ConcatDataset, "
                "or a data set whose items are tuples)"
            )
        if isinstance(given.dataset, IterableDataset) or not hasattr(given.dataset, "__len__"):
            raise UsageError(
                "the training data are an IterableDataset, or have no length: it is not known "
                "after a fault which samples have counted; give a map-style data set"
            )
        if self._trainer.reload_dataloaders_every_n_epochs:
            raise UsageError(
                "Trainer(reload_dataloaders_every_n_epochs=) would change the data that the saved "
                "position is about; leave it out"
            )
        return given

    def _sampler_for(self, given: DataLoader[Any]) -> ElasticBatchSampler:
        accumulated = self._trainer.accumulate_grad_batches
        if isinstance(given.batch_sampler, ElasticBatchSampler):
            own = given.batch_sampler
            if accumulated > 1 and own.batch_sizes[0] != own.batch_sizes[1] * accumulated:
                raise UsageError(
                    f"Trainer(accumulate_grad_batches={accumulated}) needs a sampler that gives "
                    f"each batch in {accumulated} pieces: ElasticBatchSampler(batch_size="
                    f"{own.batch_sizes[0] * accumulated}, micro_batch_size={own.batch_sizes[0]})"
                )
            return own
        if type(given.batch_sampler) is not BatchSampler or given.batch_size is None:
            raise UsageError(
                "the training DataLoader has a batch_sampler of its own, or no batch_size: "
                f"{_OWN_SAMPLER}"
            )
        settings, data = self._settings, given.dataset
        micro = settings.micro_batch(given.batch_size)
        order, replacement = self._order_of(given.sampler, len(data))
        return ElasticBatchSampler(
            data,
            micro * accumulated,
            micro_batch_size=micro,
            seed=settings.seed,
            drop_last=given.drop_last,
            order=order,
            replacement=replacement,
        )

    def _order_of(self, sampler: Any, size: int) -> tuple[Order | None, bool]:
        """The order that a sampler of torch stands for, and whether it repeats samples."""
        if self._trainer.overfit_batches > 0:
            return in_sequence(size), False
        try:
            return order_of(sampler, size)
        except LookupError as unknown:
            raise UsageError(
                f"the training DataLoader has a {unknown.args[0]}, whose order is not known for "
                f"other worlds; {_OWN_SAMPLER}"
            ) from None


class DataSettings:
    """What the user has said about batches and their order.

    Attributes:
        global_batch: samples in a micro-batch of all ranks; 0: as many as ``reference_world``
            ranks with the loader's ``batch_size`` have.
        reference_world: ranks of the world that the loader's ``batch_size`` was written for.
        recorded: the same of the job that is continued; 0: it begins.
        seed: of the order.
    """

    def __init__(
        self,
        global_batch: int | None,
        seed: int | None,
        reference_world: int,
        recorded: int = 0,
    ) -> None:
        """Takes the settings.

        Args:
            global_batch: samples in a batch of all ranks; None: see above.
            seed: of the order; None: that of Lightning's ``seed_everything``, or 0.
            reference_world: see above.
            recorded: see above.

        Raises:
            UsageError: a number makes no sense, or is not that of the job.
        """
        if global_batch is not None and global_batch < 1:
            raise UsageError(f"global_batch={global_batch}: give at least one sample")
        if global_batch and recorded and global_batch != recorded:
            raise UsageError(
                f"global_batch={global_batch}, and the job in this directory has batches of "
                f"{recorded} samples, which are fixed for it: give {recorded}, or another directory"
            )
        self.global_batch = global_batch or 0
        self.reference_world = reference_world
        self.recorded = recorded
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed

    def micro_batch(self, batch_size: int) -> int:
        """Samples in a micro-batch of all ranks.

        Args:
            batch_size: of the user's loader.
        """
        return self.recorded or self.global_batch or batch_size * self.reference_world
