"""``ElasticCallback``: checkpoints of ours under any strategy of Lightning's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.fit_job import FitJob
from elastic_runtime.trainers.trainer_job import JobSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning.pytorch import LightningModule, Trainer


class ElasticCallback(Callback):  # type: ignore[misc]  # Lightning is not typed here
    """After a fault all workers start again, from a checkpoint that any number of them can load.

    Example::

        Trainer(
            strategy=ModelParallelStrategy(),  # or "ddp", or any other
            callbacks=[ElasticCallback("runs/x", every="30s")],
            plugins=[ElasticEnvironment()],
        )

    ``fit`` needs no ``ckpt_path``. The training data and the global batch are as with
    ``ElasticStrategy``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        every: Any = "30s",
        keep: int | None = 3,
        snapshots: Any = None,
        global_batch: int | None = None,
        seed: int | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the settings; nothing is read or written before ``fit``.

        Args:
            directory, every, keep, snapshots, global_batch, seed, parts: see ``ElasticStrategy``.

        Raises:
            UsageError: a setting makes no sense.
        """
        self._directory, self._seed = directory, seed
        self._settings = JobSettings(
            every=every,
            keep=keep,
            snapshots=snapshots,
            global_batch=global_batch,
            parts=parts or {},
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Puts our loops into the trainer.

        Raises:
            UsageError: the strategy is ``ElasticStrategy``, which does all of this itself.
        """
        if stage != "fit":
            return
        if hasattr(trainer.strategy, "enter"):
            raise UsageError(
                "Trainer has both ElasticStrategy and ElasticCallback; the strategy saves and "
                "resumes by itself: leave the callback out"
            )
        reference = trainer.num_devices * trainer.num_nodes
        FitJob(trainer, self._directory, self._settings, self._seed, reference)
        if "GROUP_WORLD_SIZE" in os.environ and hasattr(trainer.strategy, "num_nodes"):
            # What is split over the ranks, such as data of a validation, is split over those.
            trainer.strategy.num_nodes = int(os.environ["GROUP_WORLD_SIZE"])
