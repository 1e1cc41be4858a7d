"""One call of ``Trainer.fit`` as a job: replaces the loops, and says what must not be lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.loops.elastic_fit_loop import ElasticFitLoop
from elastic_runtime.lightning.loops.loop_counters import LoopCounters
from elastic_runtime.lightning.loops.train_data import DataSettings
from elastic_runtime.lightning.loops.validation_guard import average_models
from elastic_runtime.lightning.reports.observations import Observations
from elastic_runtime.lightning.reports.rank_zero_reports import RankZeroReports
from elastic_runtime.trainers.batch_record import BatchRecord
from elastic_runtime.trainers.trainer_job import TrainerJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import LightningModule, Trainer

    from elastic_runtime.lightning.elastic_strategy import ElasticStrategy
    from elastic_runtime.trainers.trainer_job import JobSettings
    from elastic_runtime.worker.world import World

_DIRECTORY = "elastic_checkpoints"
_has_fitted = False


class FitJob:
    """What was put into a ``Trainer`` that is about to fit.

    Attributes:
        directory: where the job's checkpoints are.
    """

    def __init__(
        self,
        trainer: Trainer,
        directory: str | os.PathLike[str] | None,
        settings: JobSettings,
        seed: int | None,
        reference: int,
        *,
        strategy: ElasticStrategy | None = None,
    ) -> None:
        """Puts our loops into it.

        Args:
            trainer: its data are attached already, and no hook ``setup`` was called.
            directory: of the job's checkpoints; None: the usual one.
            settings: how the job is saved.
            seed: of the order of samples; None: Lightning's.
            reference: ranks that the loader's ``batch_size`` was written for.
            strategy: the trainer's, if survivors of a fault go on in place.

        Raises:
            UsageError: it was done before, or the batch is not that of the job.
        """
        global _has_fitted
        if _has_fitted:
            raise UsageError(
                "an elastic job is one call of Trainer.fit in a process, and this is the second "
                "one: give max_epochs or max_steps for all of the training, or run a further "
                "script for the next stage"
            )
        _has_fitted = True
        self.directory = os.fspath(directory or os.path.join(trainer.default_root_dir, _DIRECTORY))
        self._trainer, self._settings, self._strategy = trainer, settings, strategy
        self._record = BatchRecord(self.directory, "lightning", "micro_batch")
        recorded = 0 if trainer.fast_dev_run else self._record.batch()
        data = DataSettings(settings.global_batch, seed, reference, recorded)
        self._loop = trainer.fit_loop = ElasticFitLoop(trainer.fit_loop, data)
        self._loop.job = self
        trainer._signal_connector = _NoSignals(trainer)
        _scale_losses(trainer, self._loop)
        self._counters: LoopCounters | None = None
        self._job: TrainerJob | None = None
        self._reports = RankZeroReports(trainer, known_rank=strategy is None)
        self._notes = Observations(trainer, self._reports)
        self._told = False

    # What the fit loop asks

    def run(self, fit: Callable[[], None]) -> None:
        """Trains to the end, with as many calls of ``fit`` as there are worlds.

        Raises:
            UsageError: the model is spread over ranks, or a part of the job cannot be kept.
            SystemExit: the job was asked to stop, and has saved.
        """
        trainer, strategy = self._trainer, self._strategy
        self._counters = LoopCounters(self._loop)
        if strategy is None and trainer.fast_dev_run:  # nothing is to stay
            fit()
            return
        shadow = bool(self._settings.shadow)
        if strategy is not None:
            _refuse_sharded(trainer.lightning_module)
            if self._settings.shadow is None:
                shadow = _needs_shadow(trainer.lightning_module, strategy.optimizers)
        place = None if trainer.fast_dev_run else self.directory
        self._job = TrainerJob(
            self._parts(self._counters), self._notes, self._settings, place, shadow=shadow
        )

        def train(world: World) -> None:
            if strategy is None:
                self._tell_batch()
                fit()
                return
            strategy.enter(world)
            try:
                self._reports.hand_over(to_this=world.rank == 0)
                self._tell_batch()
                fit()
            finally:
                strategy.leave()

        self._job.run(train, in_place=strategy is not None)

    def commit(self) -> None:
        """A step is complete; it may not return."""
        if self._job is not None:
            self._job.commit()
        else:
            self._loop.train_data.loader.commit()

    def save(self) -> None:
        """Saves what is reached."""
        if self._job is not None:
            self._job.save()

    # Inside

    def _parts(self, counters: LoopCounters) -> dict[str, Any]:
        """What is the same on all ranks and must not be lost, by name."""
        trainer = self._trainer
        optimizers = trainer.strategy.optimizers
        schedulers = [config.scheduler for config in trainer.strategy.lr_scheduler_configs]
        found: dict[str, Any] = {"model": trainer.lightning_module}
        found |= {f"optimizer{number}": one for number, one in enumerate(optimizers)}
        found |= {f"scheduler{number}": one for number, one in enumerate(schedulers)}
        found |= average_models(trainer)
        if trainer.precision_plugin.state_dict():
            found["precision"] = trainer.precision_plugin
        found |= {"loader": self._loop.train_data.loader, "loops": counters}
        return self._settings.with_parts(found)

    def _tell_batch(self) -> None:
        """Rank 0 says once what the global batch is, and writes it down for those who join."""
        trainer = self._trainer
        if not trainer.is_global_zero or self._told:
            return
        self._told = True
        batch, pieces = self._loop.train_data.loader.global_batch_size, 1
        if trainer.lightning_module.automatic_optimization:
            pieces = trainer.accumulate_grad_batches
        cut = f" in {pieces} pieces" if pieces > 1 else ""
        workers = "1 worker" if trainer.world_size == 1 else f"{trainer.world_size} workers"
        rank_zero_info(
            f"elastic: a step has {batch * pieces} samples{cut}, over all workers (now {workers}); "
            "that is fixed for this job"
        )
        if not trainer.fast_dev_run:
            self._record.write(batch)


def _needs_shadow(module: LightningModule, optimizers: list[torch.optim.Optimizer]) -> bool:
    """Whether collectives may come between or within the optimizers of a step."""
    closures = any(isinstance(one, torch.optim.LBFGS) for one in optimizers)
    return closures or not module.automatic_optimization


def _refuse_sharded(module: LightningModule) -> None:
    """Refuses a model of which each rank has a part, with a word that helps under Lightning."""
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise UsageError(
                f"{name} is spread over ranks (FSDP2, tensor parallel), and such models do not go "
                "on in place yet; train with Trainer(strategy=ModelParallelStrategy(), "
                'callbacks=[ElasticCallback("dir")]), which restarts from checkpoints that any '
                "number of ranks can load"
            )


def _scale_losses(trainer: Trainer, loop: ElasticFitLoop) -> None:
    """Has each rank's mean loss count as much as its share of the batch."""
    strategy = trainer.strategy
    backward = strategy.backward

    def weighted(loss: torch.Tensor, *args: Any, **options: Any) -> Any:
        weight = loop.train_data.batches.step.weight
        return backward(loss if weight == 1.0 else loss * weight, *args, **options)

    strategy.backward = weighted


class _NoSignals(_SignalConnector):  # type: ignore[misc]  # Lightning is not typed here
    """Leaves signals alone.

    Lightning's own handler broadcasts to the other ranks in whatever they are doing: a SIGTERM to
    one worker held all of them for ever.
    """

    def register_signal_handlers(self) -> None:
        """Registers none."""

    def teardown(self) -> None:
        """Restores none."""
