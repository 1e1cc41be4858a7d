"""Replaces the loops of a ``Trainer``, and says which of its objects must not be lost."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.loops.elastic_fit_loop import ElasticFitLoop
from elastic_runtime.lightning.loops.loop_counters import LoopCounters
from elastic_runtime.lightning.loops.validation_guard import average_models
from elastic_runtime.lightning.reports.observations import Observations
from elastic_runtime.lightning.reports.rank_zero_reports import RankZeroReports
from elastic_runtime.trainers.batch_record import BatchRecord

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from elastic_runtime.lightning.loops.train_data import DataSettings

_DIRECTORY = "elastic_checkpoints"
_has_fitted = False


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How a job is saved.

    Attributes:
        directory: of its checkpoints; None: the usual place.
        every, keep, snapshot_every: see ``Checkpointer``.
        parts: the user's further objects, by name.
        start_over, shadow: see ``ElasticStrategy``.
    """

    directory: str | os.PathLike[str] | None
    every: Any
    keep: int | None
    snapshot_every: Any
    parts: dict[str, Any]
    start_over: bool = False
    shadow: bool | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be, before a job is started for it."""
        parse_every(self.every)
        parse_every(self.snapshot_every, "snapshot_every")

    def where(self, trainer: Trainer) -> str:
        """Where the job's checkpoints are."""
        return os.fspath(self.directory or os.path.join(trainer.default_root_dir, _DIRECTORY))

    def recorded_batch(self, trainer: Trainer) -> int:
        """Samples in a micro-batch of all ranks, of the job that is there; 0: none."""
        return 0 if trainer.fast_dev_run else self.record(trainer).batch()

    def record(self, trainer: Trainer) -> BatchRecord:
        """Where that is written down."""
        return BatchRecord(self.where(trainer), "lightning", "micro_batch")


@dataclass(frozen=True, slots=True)
class ElasticLoops:
    """What was put into a ``Trainer``.

    Attributes:
        trainer: that.
        loop: in the place of its fit loop.
        reports: what belongs to rank 0.
        observations: what each rank has for itself.
        settings: how the job is saved.
        told: the global batch, once this process has said it.
    """

    trainer: Trainer
    loop: ElasticFitLoop
    reports: RankZeroReports
    observations: Observations
    settings: JobSettings
    told: list[int] = field(default_factory=list)

    def parts(self) -> dict[str, Any]:
        """What is the same on all ranks and must not be lost, by name.

        Raises:
            UsageError: a name is taken.
        """
        trainer = self.trainer
        optimizers = trainer.strategy.optimizers
        schedulers = [config.scheduler for config in trainer.strategy.lr_scheduler_configs]
        found: dict[str, Any] = {"model": trainer.lightning_module}
        found |= {f"optimizer{number}": one for number, one in enumerate(optimizers)}
        found |= {f"scheduler{number}": one for number, one in enumerate(schedulers)}
        found |= average_models(trainer)
        if trainer.precision_plugin.state_dict():
            found["precision"] = trainer.precision_plugin
        found |= {"sampler": self.loop.train_data.sampler, "loops": LoopCounters(self.loop)}
        if taken := sorted(found.keys() & self.settings.parts.keys()):
            raise UsageError(f"parts= has the name {taken[0]!r}, which is taken; take another one")
        return found | self.settings.parts

    @property
    def directory(self) -> str:
        """Where the job's checkpoints are."""
        return self.settings.where(self.trainer)

    def tell_batch(self) -> None:
        """Rank 0 says once what the global batch is, and writes it down for those who join."""
        trainer = self.trainer
        whole, micro = self.loop.train_data.sampler.batch_sizes
        if not trainer.is_global_zero or self.told:
            return
        self.told.append(micro)
        pieces = f" in {whole // micro} pieces" if whole > micro else ""
        workers = "1 worker" if trainer.world_size == 1 else f"{trainer.world_size} workers"
        rank_zero_info(
            f"elastic: a step has {whole} samples{pieces}, over all workers (now {workers}); "
            "that is fixed for this job"
        )
        if not trainer.fast_dev_run:
            self.settings.record(trainer).write(micro)

    def checkpointer(self, parts: dict[str, Any]) -> Checkpointer:
        """What saves them."""
        settings = self.settings
        return Checkpointer(
            self.directory,
            {**parts, "observations": self.observations},
            every=settings.every,
            keep=settings.keep,
            snapshot_every=settings.snapshot_every,
        )


def install(
    trainer: Trainer, data: DataSettings, settings: JobSettings, *, known_rank: bool = False
) -> ElasticLoops:
    """Puts our loops into a trainer that is about to fit.

    Args:
        trainer: its data are attached already, and no hook ``setup`` was called.
        data: about batches and their order.
        settings: how the job is saved.
        known_rank: the rank of this process will not change.

    Raises:
        UsageError: it was done before.
    """
    global _has_fitted
    if _has_fitted:
        raise UsageError(
            "an elastic job is one call of Trainer.fit in a process, and this is the second one: "
            "give max_epochs or max_steps for all of the training, or run a further script for the "
            "next stage"
        )
    _has_fitted = True
    loop = trainer.fit_loop = ElasticFitLoop(trainer.fit_loop, data)
    trainer._signal_connector = _NoSignals(trainer)
    _scale_losses(trainer, loop)
    reports = RankZeroReports(trainer, known_rank=known_rank)
    observations = Observations(trainer, reports, lambda: loop.train_data.sampler.commits)
    return ElasticLoops(trainer, loop, reports, observations, settings)


def needs_shadow(module: LightningModule, optimizers: list[torch.optim.Optimizer]) -> bool:
    """Whether collectives may come between or within the optimizers of a step."""
    closures = any(isinstance(one, torch.optim.LBFGS) for one in optimizers)
    return closures or not module.automatic_optimization


def _scale_losses(trainer: Trainer, loop: ElasticFitLoop) -> None:
    """Has each rank's mean loss count as much as its share of the batch."""
    strategy = trainer.strategy
    backward = strategy.backward

    def weighted(loss: torch.Tensor, *args: Any, **options: Any) -> Any:
        weight = loop.epoch_loop.weight
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
