"""The training data of a ``Trainer``: the user's ``DataLoader``, made anew with our sampler.

Lightning's loops count batches, and its own samplers split the data over the ranks of one world.
Here a batch is one of all ranks, of a size that is fixed for the job: so the count means the same
in every world, and the sampler's position is that of the loops.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchLoader

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.epoch_batches import EpochBatches
from elastic_runtime.trainers.known_orders import in_sequence, order_of

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from elastic_runtime.data.epoch_order import Order

_OWN_ORDER = (
    "give elastic.DataLoader(data, global_batch_size=…, order=…) as the training data, whose batch "
    "is that of all ranks together"
)


class TrainData(_DataLoaderSource):  # type: ignore[misc]  # Lightning is not typed here
    """Where a fit loop gets its training data from.

    Where a rank's gradients are accumulated over several batches, each is a step of the loader, and
    a commit is about all of them.

    Attributes:
        loader: known once the data were asked for.
    """

    loader: DataLoader

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
            sampling = {} if isinstance(given, DataLoader) else self._sampling_of(given)
            self._batches = EpochBatches(given, **sampling)
            self.loader = self._batches.loader
        return self._batches

    @property
    def batches(self) -> EpochBatches:
        """The data, which were asked for before."""
        assert self._batches is not None
        return self._batches

    def begin_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch: the one before may have ended early.

        Args:
            epoch: which, from 0.
        """
        if (self.loader.epoch, self.loader.cursor) != (epoch, 0):
            self.loader.go_to(epoch)

    def _checked(self, given: object) -> TorchLoader[Any] | DataLoader:
        if self._trainer.reload_dataloaders_every_n_epochs:
            raise UsageError(
                "Trainer(reload_dataloaders_every_n_epochs=) would change the data that the saved "
                "position is about; leave it out"
            )
        if isinstance(given, DataLoader):
            if given.batch_sampler.at_once:
                raise UsageError(
                    "at_once= cuts a step as memory asks for in each world, and Lightning counts "
                    "batches, the same in every world; give elastic.DataLoader the "
                    "global_batch_size of one batch, and Trainer(accumulate_grad_batches=)"
                )
            return given
        if not isinstance(given, TorchLoader):
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
        return given

    def _sampling_of(self, given: TorchLoader[Any]) -> dict[str, Any]:
        """What our loader is told in the place of the user's sampler."""
        if type(given.batch_sampler) is not BatchSampler or given.batch_size is None:
            raise UsageError(
                "the training DataLoader has a batch_sampler of its own, or no batch_size: "
                f"{_OWN_ORDER}"
            )
        order, replacement = self._order_of(given.sampler, len(given.dataset))
        return {
            "global_batch_size": self._settings.batch(given.batch_size),
            "seed": self._settings.seed,
            "drop_last": given.drop_last,
            "order": order,
            "replacement": replacement,
        }

    def _order_of(self, sampler: Any, size: int) -> tuple[Order | None, bool]:
        """The order that a sampler of torch stands for, and whether it repeats samples."""
        if self._trainer.overfit_batches > 0:
            return in_sequence(size), False
        try:
            return order_of(sampler, size)
        except LookupError as unknown:
            raise UsageError(
                f"the training DataLoader has a {unknown.args[0]}, whose order is not known for "
                f"other worlds; {_OWN_ORDER}"
            ) from None


class DataSettings:
    """What the user has said about batches and their order.

    Attributes:
        global_batch: samples in a batch of all ranks; 0: as many as ``reference_world``
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
            UsageError: a number is not that of the job.
        """
        if global_batch and recorded and global_batch != recorded:
            raise UsageError(
                f"global_batch={global_batch}, and the job in this directory has batches of "
                f"{recorded} samples, which are fixed for it: give {recorded}, or another directory"
            )
        self.global_batch = global_batch or 0
        self.reference_world = reference_world
        self.recorded = recorded
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed

    def batch(self, batch_size: int) -> int:
        """Samples in a batch of all ranks.

        Args:
            batch_size: of the user's loader.
        """
        return self.recorded or self.global_batch or batch_size * self.reference_world
