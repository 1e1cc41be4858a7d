"""One call of ``Trainer.train`` in an elastic job.

What a ``Trainer`` does before its first step (data, optimizer, schedule) is done once in each
process and without other ranks, so that a replacement does it while the others train. Its own
``_run_epoch`` then trains in one world after the other, from wherever the job is; what follows a
step is owed until the next one is committed.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import trainer as trainers
from transformers.utils import logging

import elastic_runtime as elastic
from elastic_runtime.accelerate import accelerate_world
from elastic_runtime.trainers.epoch_batches import EpochBatches
from elastic_runtime.trainers.trainer_job import TrainerJob
from elastic_runtime.transformers.kept_model import kept_model
from elastic_runtime.transformers.loop_notes import LoopNotes
from elastic_runtime.transformers.progress import Progress
from elastic_runtime.transformers.rank_zero_callbacks import RankZeroCallbacks
from elastic_runtime.transformers.steps.loss_shares import LossShares
from elastic_runtime.transformers.steps.step_callbacks import begin_at, place_of
from elastic_runtime.transformers.steps.train_batches import TrainBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Trainer

    from elastic_runtime.transformers.elastic_options import ElasticOptions
    from elastic_runtime.worker.world import World

# Of theirs, so that it is shown as their users have chosen.
logger = logging.get_logger("transformers.elastic")

# Given to a Trainer as the checkpoint that it goes on from, in the middle of an epoch.
_HERE = "elastic"


class TrainingJob:
    """What ``train`` is about.

    Attributes:
        trainer, options: its own.
        data: where samples come from.
        progress: how far it is.
        notes: what this rank has noted.
        losses: what the loss of a micro-batch counts.
    """

    def __init__(
        self,
        trainer: Trainer,
        options: ElasticOptions,
        resume_from: str | None,
        ignored_keys: list[str] | None,
    ) -> None:
        """Does all that comes before the first step.

        Args:
            trainer: whose ``train`` was called.
            options: how the job is saved.
            resume_from: a checkpoint of the ``Trainer``'s own to begin with.
            ignored_keys: see ``Trainer.train``.

        Raises:
            UsageError: the data or settings cannot be continued in another world.
        """
        self.trainer, self.options = trainer, options
        args = trainer.args
        trainer.accelerator.free_memory()
        self._record = options.record(args.output_dir)
        self.data = TrainBatches(trainer, options.global_batch or 0, self._record.batch())
        trainer._elastic_batch = self.data.global_batch
        self._written = args.gradient_accumulation_steps
        args.ignore_data_skip = False  # the data begin where the job is, and steps are counted so
        counted = self.data.whole_epochs(self._written)
        numbers = trainer.set_initial_training_values(args, counted)
        self._epochs, steps, _, self._samples, _, _, self._max_steps = numbers
        total = self._max_steps
        trainer._init_training_state(total, steps, self._epochs, resume_from, None)
        if resume_from is not None:
            begin_at(resume_from, trainer.state, self.data)
        trainer._prepare_for_training(total, self.data.batches, resume_from)
        model = trainer.model_wrapped if trainer.is_fsdp_enabled else trainer.model
        self.model, frozen = kept_model(model)
        self.progress = Progress(trainer, self.data, frozen)
        finished = self._record.number("finished")
        self.notes = LoopNotes(trainer, finished)
        self.notes.stopped = bool(self._record.number("stopped"))
        self._callbacks = RankZeroCallbacks(trainer)
        self._ignored = ignored_keys
        self._epoch_here = -1  # the newest epoch that on_epoch_begin was called for here
        self.losses = LossShares(trainer, self.data.batches)
        self._told = False
        self._start_sums()
        self._job = TrainerJob(
            self._parts(),
            self.notes,
            options,
            options.where(args.output_dir),
            shadow=bool(options.shadow),
        )

    # How it goes

    def run(self) -> Any:
        """Trains to the end, and does what the ``Trainer`` does then.

        Returns:
            The ``Trainer``'s own result.

        Raises:
            UsageError: a part of the job cannot be kept.
            SystemExit: the job was asked to stop, and has saved.
        """
        trainer, in_place = self.trainer, self.options.in_place
        try:
            self._job.run(self._in_world if in_place else self._train, in_place=in_place)
        finally:
            trainer.args.gradient_accumulation_steps = self._written
        state = trainer.state
        if trainer.is_world_process_zero() and state.global_step:
            stopped = trainer.control.should_training_stop and state.global_step < self._max_steps
            ended = {"finished": state.global_step, "stopped": int(stopped)}
            self._record.write(self.data.global_batch, **ended)
        return trainer._finalize_training(None, self._samples, self.notes.started)

    def commit(self) -> None:
        """Commits the step that the ``Trainer`` has just completed."""
        if self.notes.finished:  # it goes on
            self.notes.finished = 0
            if self.trainer.is_world_process_zero():
                self._record.write(self.data.global_batch, finished=0, stopped=0)
        self._job.commit()

    def count_epochs(self) -> None:
        """Says how far the step that is complete is in its epoch, whatever its micro-batches."""
        loader = self.data.loader
        done = loader.cursor // self.data.global_batch + 1
        self.trainer.state.epoch = loader.epoch + done / len(loader)

    def _in_world(self, world: World) -> None:
        """Trains in a world whose ranks accelerate does not know yet."""
        trainer = self.trainer
        plain = trainer.model_wrapped
        accelerate_world.enter(world.rank, world.size, world.local_rank)
        trainer.model_wrapped = _connected(trainer, plain)
        try:
            self._train(world)
        finally:
            trainer.model_wrapped = plain
            accelerate_world.stand_alone(world.rank, world.local_rank)

    def _enter(self, world: World) -> None:
        """A world begins, and the state of the job is in memory."""
        trainer = self.trainer
        self.data.batches.enter()
        vars(trainer).pop("_eval_dataloaders", None)  # they are for the ranks of the last world
        if hasattr(trainer.optimizer, "train"):
            trainer.optimizer.train()  # an evaluation may have been interrupted
        trainer.callback_handler.callbacks.sort(key=place_of)
        self._callbacks.enter()
        self._tell_batch(world.size)
        trainer.args.gradient_accumulation_steps = self.data.pieces

    def _train(self, world: World) -> None:
        """Trains in one world, from wherever the job is to its end, and saves that."""
        self._enter(world)
        self._train_epochs()
        self._job.save()

    def _train_epochs(self) -> None:
        trainer, loader = self.trainer, self.data.loader
        trainer.model_wrapped.zero_grad()
        epoch, done = loader.epoch, loader.cursor // self.data.global_batch
        over = False
        if self.notes.finished and self.notes.finished == self.progress.step:
            # All of it was done when the job ended, though perhaps not saved as done.
            self.progress.owes = False
            trainer.control.should_training_stop |= self.notes.stopped
            self._tell_finished()
        if self.progress.owes:
            if loader.cursor == 0:  # it was the last step of an epoch
                epoch, done, over = epoch - 1, loader.batch_sampler.steps_of(epoch - 1), True
            self._settle(epoch)
            over = over or trainer.control.should_epoch_stop or trainer.control.should_training_stop
        elif trainer.control.should_training_stop or trainer.state.global_step >= self._max_steps:
            return
        elif done == 0 and epoch == 0 and trainer.args.eval_on_start:
            with elastic.busy("evaluation"):
                trainer._evaluate(None, self._ignored, skip_scheduler=True)
        while epoch < self._epochs:
            self._run_epoch(epoch, done, over=over)
            if trainer.control.should_training_stop:
                break
            epoch, done, over = epoch + 1, 0, False
            if (loader.epoch, loader.cursor) != (epoch, 0):  # a callback has ended it early
                loader.go_to(epoch)
        self.progress.owes = False
        trainer.store_flos()

    def _run_epoch(self, epoch: int, done: int, *, over: bool) -> None:
        """Trains what is left of an epoch, and ends it.

        Args:
            epoch: which.
            done: steps of it that are committed.
            over: no further one follows.
        """
        trainer = self.trainer
        if self._epoch_here != epoch and not (over and trainer.control.should_epoch_stop):
            self._epoch_here = epoch
            trainer.control = trainer.callback_handler.on_epoch_begin(
                trainer.args, trainer.state, trainer.control
            )
        pieces = self.data.pieces
        trainer._run_epoch(
            model=trainer.model_wrapped,
            epoch=epoch,
            train_dataloader=self.data.batches,
            steps_in_epoch=done * pieces if over else len(self.data.batches),
            num_update_steps_per_epoch=done if over else len(self.data.loader),
            trial=None,
            ignore_keys_for_eval=self._ignored,
            start_time=self.notes.started,
            resume_from_checkpoint=_HERE if done else None,
            epochs_trained=epoch,
            steps_trained_in_current_epoch=done * pieces,
        )

    def _settle(self, epoch: int) -> None:
        """Does what follows the step that the job goes on from."""
        trainer, notes = self.trainer, self.notes
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            notes.grad_norm,
            trainer.model_wrapped,
            None,
            epoch,
            self._ignored,
            self.notes.started,
            learning_rate=notes.learning_rate,
        )

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within the block the ``Trainer`` logs, evaluates and saves."""
        args, control = self.trainer.args, self.trainer.control
        long = control.should_evaluate or control.should_save
        what = "evaluation" if control.should_evaluate else "a save of the Trainer's own"
        pieces, args.gradient_accumulation_steps = args.gradient_accumulation_steps, self._written
        with elastic.busy(what) if long else nullcontext():
            yield
        args.gradient_accumulation_steps = pieces

    # Inside

    def _parts(self) -> dict[str, Any]:
        """What is the same on all ranks and must not be lost, by name."""
        trainer = self.trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        found = {"model": self.model, "optimizer": optimizer, "scheduler": trainer.lr_scheduler}
        if trainer.accelerator.scaler is not None:
            found["scaler"] = trainer.accelerator.scaler
        found |= {"loader": self.data.loader, "progress": self.progress}
        return self.options.with_parts(found)

    def _start_sums(self) -> None:
        """What the ``Trainer`` adds up while it trains."""
        trainer = self.trainer
        trainer._initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        trainer._initial_global_step = trainer.state.global_step
        trainer._tr_loss = torch.tensor(0.0, device=trainer.args.device)
        trainer._total_loss_scalar = 0.0
        trainer._globalstep_last_logged = trainer.state.global_step

    def _tell_batch(self, world_size: int) -> None:
        """Rank 0 says once what the global batch is, and writes it down for those who join."""
        if self._told or not self.trainer.is_world_process_zero():
            return
        self._told = True
        whole, pieces = self.data.global_batch, self.data.pieces
        workers = "1 worker" if world_size == 1 else f"{world_size} workers"
        cut = f", in {pieces} pieces" if pieces > 1 else ""
        fixed = "that is fixed for this job"
        if self.data.asked_for != whole:
            fixed += f", though its arguments now ask for {self.data.asked_for}"
        logger.warning(
            "elastic: a step has %d samples over all workers (now %s, %d at once each%s); %s",
            whole,
            workers,
            math.ceil(math.ceil(whole / world_size) / pieces),
            cut,
            fixed,
        )
        self._record.write(whole)

    def _tell_finished(self) -> None:
        if self.trainer.is_world_process_zero():
            logger.warning(
                "elastic: this job was trained to its end at step %d; what its arguments ask for "
                "beyond that is trained now. To begin anew, remove %s, or take another directory",
                self.progress.step,
                self.options.where(self.trainer.args.output_dir),
            )


def leave_our_loaders_alone() -> None:
    """Has a ``Trainer`` skip nothing of data that begin where the job is; to be called once."""
    skip = trainers.skip_first_batches

    def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
        return loader if isinstance(loader, EpochBatches) else skip(loader, num_batches)

    trainers.skip_first_batches = skip_first_batches


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
