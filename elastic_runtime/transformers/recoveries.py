"""How the job of a ``Trainer`` goes on after a fault: in place, or from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

import elastic_runtime as elastic
from elastic_runtime.accelerate import accelerate_world
from elastic_runtime.checkpoint.checkpointer import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.training.state import State
    from elastic_runtime.transformers.training_job import TrainingJob
    from elastic_runtime.worker.world import World


class GoOnInPlace:
    """By ``elastic.run``: survivors keep their processes."""

    def __init__(self, job: TrainingJob) -> None:
        """Remembers what it is about.

        Args:
            job: that; its model is prepared, and no ranks are connected.
        """
        self._job = job
        self._state: State | None = None

    def run(self, train: Callable[[], None]) -> None:
        """Calls ``train`` in one world after the other.

        Raises:
            UsageError: a part of the job cannot be kept.
        """
        job, trainer = self._job, self._job.trainer
        parts = job.parts()
        state = self._state = elastic.State(shadow=job.options.shadow, **parts)
        saver = _saver(job, parts)
        plain = trainer.model_wrapped

        def in_world(world: World) -> None:
            accelerate_world.enter(world.rank, world.size, world.local_rank)
            trainer.model_wrapped = _connected(trainer, plain)
            try:
                job.enter(state.step, world.size)
                train()
            finally:
                trainer.model_wrapped = plain
                accelerate_world.stand_alone(world.rank, world.local_rank)
            saver.save()

        elastic.run(in_world, state, saver, start_over=job.options.start_over)

    def commit(self) -> None:
        """Commits a step; the round may end here.

        Raises:
            WorldChanged: it does.
        """
        assert self._state is not None
        self._job.notes.note(self._state.step + 1)
        self._state.commit()


class StartAgain:
    """All workers start again, from a checkpoint that any number of them can load."""

    def __init__(self, job: TrainingJob) -> None:
        """Remembers what it is about.

        Args:
            job: that; its ranks are connected.
        """
        self._job = job
        self._saver: Checkpointer | None = None

    def run(self, train: Callable[[], None]) -> None:
        """Resumes, and trains to the end.

        Raises:
            SystemExit: the job was asked to stop, and has saved.
        """
        job = self._job
        saver = self._saver = _saver(job, job.parts())
        step = saver.resume()
        job.enter(step, dist.get_world_size() if dist.is_initialized() else 1)
        train()
        saver.save()
        saver.close()

    def commit(self) -> None:
        """Counts a step, and saves if that is due.

        Raises:
            SystemExit: see ``run``.
        """
        assert self._saver is not None
        self._saver.step()


def _saver(job: TrainingJob, parts: dict[str, Any]) -> Checkpointer:
    options = job.options
    return Checkpointer(
        job.directory,
        {**parts, "notes": job.notes},
        every=options.every,
        keep=options.keep,
        snapshot_every=options.snapshot_every,
    )


def _connected(trainer: Any, model: Any) -> Any:
    """The model in ``DistributedDataParallel``, with the ``Trainer``'s options for it."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    handler = trainer.accelerator.ddp_handler
    options = handler.to_kwargs() if handler is not None else {}
    device = trainer.args.device
    if device.type != "cpu":
        options |= {"device_ids": [device.index], "output_device": device.index}
    wrapped = elastic.ddp(model, **options)
    if handler is not None:
        handler.register_comm_hook(wrapped)
    return wrapped
