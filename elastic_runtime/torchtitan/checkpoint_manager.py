"""A checkpoint manager of torchtitan's that saves what a ``State`` of ours holds.

torchtitan calls ``save`` after each step, and each call is a commit: there all ranks agree on a
save, take a snapshot, or leave. Our checkpoints are in ``elastic`` below
torchtitan's own folder, which is read when there is none of ours, and gets what is exported.
"""

# No ``from __future__ import annotations``: what reads the command line looks at the types.
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.checkpointer.base import DATALOADER
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.tools import filesystem
from torchtitan.tools.logging import logger

import elastic_runtime
from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.checkpoint.storage.retention import parse_retention
from elastic_runtime.errors import NoCheckpoint, UsageError
from elastic_runtime.torchtitan.elastic_trainer import ElasticMixin
from elastic_runtime.torchtitan.model_parts import ModelParts, OptimizerParts
from elastic_runtime.torchtitan.sharing_loader import ElasticDataLoader
from elastic_runtime.torchtitan.train_progress import TrainProgress

FOLDER = "elastic"


class ElasticCheckpointManager(CheckpointManager):  # type: ignore[misc]  # torchtitan: no types
    """Saves while training goes on, resumes in a world of any size, and leaves when asked to."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """What is different from torchtitan's own; ``async_mode`` has no effect."""

        enable: bool = True
        """Whether to save and to resume; without it a fault costs all steps."""

        every: str = ""
        """How often to save: "5m", "500 steps", or both, "500 steps, 5m", whichever comes first.
        Left out: every `interval` steps."""

        snapshots: str = "30s"
        """How often to take a snapshot into the memory of the nodes, from which a job goes on
        after a fault if it is newer than the last save; "" for none."""

        keep_every: str = ""
        """Which older checkpoints are never deleted: "1000 steps", "6h", or both. Of the others
        the newest `keep_latest_k` are kept."""

        def __post_init__(self) -> None:
            CheckpointManager.Config.__post_init__(self)
            parse_every(self.every or None)
            parse_every(self.snapshots or None, "snapshots")
            parse_retention(self.keep_latest_k or None, self.keep_every or None)

    def __init__(self, config: Any, *, states: dict[str, Any], **given: Any) -> None:
        """Touches no folder yet.

        Args:
            config: its own.
            states: with the trainer, as torchtitan gives it.
            **given: what else torchtitan's manager gets.

        Raises:
            UsageError: the trainer or its loader is not one of ours.
            CheckpointUsageError: a setting cannot be used.
        """
        trainer, loader = states["train_state"], given["dataloader"]
        if not isinstance(trainer, ElasticMixin) or not isinstance(loader, ElasticDataLoader):
            raise UsageError(
                "ElasticCheckpointManager needs ElasticTrainer and a loader that shares out its "
                "data anew; make the config with elastic_runtime.torchtitan.elastic"
            )
        loader.is_saved = config.enable and not config.load_only
        super().__init__(
            replace(config, keep_latest_k=0, async_mode="disabled"), states=states, **given
        )
        if not self.enable:
            return
        self.states.pop(DATALOADER, None)  # torchtitan would save positions of one world only
        excluded = [name for name in config.exclude_from_loading if name != DATALOADER]
        self.exclude_from_loading: list[str] = excluded
        self._trainer = trainer
        self._seeds = config.create_seed_checkpoint
        self._progress = TrainProgress(trainer)
        self._schedules = given["lr_schedulers"]
        entries = {
            "model": ModelParts(given["model_parts"]),
            "optimizer": OptimizerParts(list(given["optimizers"])),
            "lr_scheduler": self._schedules,
            "progress": self._progress,
            "dataloader": loader,
        }
        self._begins_at = 0  # steps that torchtitan's own checkpoint has
        self._place = filesystem.join(self.folder, FOLDER)
        # torchtitan seeds by the place of a rank in the present layout.
        self._state = elastic_runtime.State(generators=False, **entries)
        self._state.checkpoints(
            self._place,
            every=config.every or f"{config.interval} steps",
            snapshots=config.snapshots or None,
            keep=config.keep_latest_k or None,
            keep_every=config.keep_every or None,
        )

    def __del__(self) -> None:
        """Nothing: torchtitan's would close it, which saves, wherever the program is."""

    def run(self, train: Callable[[], None]) -> None:
        """Trains: from what is saved, and saving it.

        Args:
            train: torchtitan's own training.

        Raises:
            SystemExit: the job was asked to stop, and has saved.
        """
        if not self.enable or self.load_only:
            train()
        else:
            elastic_runtime.run(lambda world: train(), self._state, in_place=False)

    def _load(self, step: int = -1) -> bool:
        if self.load_only:
            with suppress(NoCheckpoint):
                elastic_runtime.load(self._place, self._state)
        found = self._state.step  # run() has loaded it
        if not found:
            loaded = self._load_theirs(step)
            self._state.resumed_at(0)  # of it nothing is saved before a step follows
            self._trainer.plan_steps()
            return loaded
        self._set_rates()
        if step not in (-1, found):
            logger.warning(
                f"--checkpoint.load_step={step} has no effect: the job goes on at step {found}, "
                f"its newest; remove {self._place} to begin with another checkpoint"
            )
        if self.exclude_from_loading:
            logger.warning(
                "--checkpoint.exclude_from_loading has no effect: the job goes on with all that "
                f"{self._place} has"
            )
        if found >= self._trainer.config.training.steps:
            self._export(found)  # for which the job has ended too early, or was not asked
        return True

    def _set_rates(self) -> None:
        """Has the optimizers learn at the rates of the schedules, which know their step only."""
        for schedule in self._schedules:
            groups = schedule.optimizer.param_groups
            for group, rate in zip(groups, schedule.get_last_lr(), strict=True):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def _load_theirs(self, step: int) -> bool:
        """Begins with what torchtitan itself has saved, or with other weights, if asked to."""
        loaded = bool(super()._load(step))
        if reached := self._trainer.step:
            self._progress.begin_at(reached, self._trainer.ntokens_seen)
            self._begins_at = reached
            logger.warning(
                f"elastic: the job goes on from torchtitan's own checkpoint of step {reached}; it "
                "has no position of the data that another world could use, so these begin anew"
            )
        return loaded

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if self._seeds:
            return bool(super()._save(curr_step, last_step))
        if self.load_only:
            return False
        if self._begins_at:
            self._state.resumed_at(self._begins_at)
            self._begins_at = 0
        self._state.commit()
        if last_step or (curr_step == 1 and self.enable_first_step_checkpoint):
            self._state.save(sync=last_step)
        if last_step:
            self._export(curr_step)
        return True

    def _export(self, step: int) -> None:
        """Writes what torchtitan leaves of a job that is over, if it is asked for and not there."""
        if not self.last_save_model_only or self.load_only:
            return
        place = self._create_checkpoint_id(step)
        complete = any(
            filesystem.isfile(filesystem.join(place, name))
            for name in (".metadata", "model.safetensors.index.json")
        )
        # All ranks have the same answer before any of them writes.
        dist.barrier()
        if not complete:
            self._save_last_step(step)
