"""``ElasticCallback``: checkpoints of ours under any strategy of Lightning's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.loops.train_data import DataSettings
from elastic_runtime.lightning.trainer_parts import JobSettings, install

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lightning.pytorch import LightningModule, Trainer

    from elastic_runtime.checkpoint.checkpointer import Checkpointer
    from elastic_runtime.lightning.trainer_parts import ElasticLoops


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
        snapshot_every: Any = None,
        global_batch: int | None = None,
        seed: int | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the settings; nothing is read or written before ``fit``.

        Args:
            directory, every, keep, snapshot_every, global_batch, seed, parts: see
                ``ElasticStrategy``.

        Raises:
            UsageError: a setting makes no sense.
        """
        self._settings = JobSettings(directory, every, keep, snapshot_every, dict(parts or {}))
        self._global_batch, self._seed = global_batch, seed
        DataSettings(global_batch, seed, 1)  # refuses what makes no sense

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
        recorded = self._settings.recorded_batch(trainer)
        data = DataSettings(self._global_batch, self._seed, reference, recorded)
        loops = install(trainer, data, self._settings, known_rank=True)
        loops.loop.recovery = RestartRecovery(loops)
        if "GROUP_WORLD_SIZE" in os.environ and hasattr(trainer.strategy, "num_nodes"):
            # What is split over the ranks, such as data of a validation, is split over those.
            trainer.strategy.num_nodes = int(os.environ["GROUP_WORLD_SIZE"])


class RestartRecovery:
    """A ``Recovery`` by a restart of all workers."""

    def __init__(self, loops: ElasticLoops) -> None:
        """Remembers what it is about.

        Args:
            loops: those to run.
        """
        self._loops = loops
        self._saver: Checkpointer | None = None

    def run(self, fit: Callable[[], None]) -> None:
        """Resumes, and trains to the end.

        Raises:
            SystemExit: the job was asked to stop, and has saved.
        """
        loops = self._loops
        if loops.trainer.fast_dev_run:  # nothing is to stay
            fit()
            return
        saver = self._saver = loops.checkpointer(loops.parts())
        saver.resume()
        loops.observations.enter_alone()
        loops.tell_batch()
        fit()
        saver.save()
        saver.close()

    def commit(self) -> None:
        """Counts a step, and saves if that is due.

        Raises:
            SystemExit: see ``run``.
        """
        if self._saver is not None:
            self._saver.step()
        else:
            self._loops.loop.train_data.sampler.commit()

    def save(self) -> None:
        """Saves the last step."""
        if self._saver is not None:
            self._saver.save()
