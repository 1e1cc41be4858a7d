"""One call of ``Trainer.train`` in an elastic job.

What a ``Trainer`` does before its first step (data, optimizer, schedule) is done once in each
process and without other ranks, so that a replacement does it while the others train. Its own
``_run_epoch`` then trains in one world after the other, from wherever the job is; what follows a
step is owed until the next one is committed.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import trainer as trainers
from transformers.utils import logging

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.epoch_batches import EpochBatches
from elastic_runtime.transformers.kept_model import kept_model
from elastic_runtime.transformers.loop_notes import LoopNotes
from elastic_runtime.transformers.progress import Progress
from elastic_runtime.transformers.rank_zero_callbacks import RankZeroCallbacks
from elastic_runtime.transformers.steps.loss_shares import LossShares
from elastic_runtime.transformers.steps.step_callbacks import begin_at, place_of
from elastic_runtime.transformers.steps.train_batches import TrainBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import Trainer

    from elastic_runtime.transformers.elastic_options import ElasticOptions

# Of theirs, so that it is shown as their users have chosen.
logger = logging.get_logger("transformers.elastic")

# Given to a Trainer as the checkpoint that it goes on from, in the middle of an epoch.
_HERE = "elastic"


class JobRecovery(Protocol):
    """How a job goes on after faults: in place, or from checkpoints."""

    def run(self, train: Callable[[], None]) -> None:
        """Trains, with as many calls of ``train`` as there are worlds."""

    def commit(self) -> None:
        """A step is complete; it may not return."""


class TrainingJob:
    """What ``train`` is about.

    Attributes:
        trainer, options: its own.
        data: where samples come from.
        progress: how far it is.
        notes: what this rank has noted.
        losses: what the loss of a micro-batch counts.
        recovery: set before it runs.
    """

    recovery: JobRecovery

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
        self.notes = LoopNotes(trainer, lambda: self.data.sampler.commits, finished)
        self.notes.stopped = bool(self._record.number("stopped"))
        self._callbacks = RankZeroCallbacks(trainer)
        self._ignored = ignored_keys
        self._epoch_here = -1  # the newest epoch that on_epoch_begin was called for here
        self.losses = LossShares(trainer, self.data.sampler)
        self._told = False
        self._start_sums()

    # What it consists of

    def parts(self) -> dict[str, Any]:
        """What is the same on all ranks and must not be lost, by name.

        Raises:
            UsageError: a name is taken.
        """
        trainer = self.trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        found = {"model": self.model, "optimizer": optimizer, "scheduler": trainer.lr_scheduler}
        if trainer.accelerator.scaler is not None:
            found["scaler"] = trainer.accelerator.scaler
        found |= {"sampler": self.data.sampler, "progress": self.progress}
        if taken := sorted(found.keys() & self.options.parts.keys()):
            raise UsageError(f"parts= has the name {taken[0]!r}, which is taken; take another one")
        return found | self.options.parts

    @property
    def directory(self) -> str:
        """Where the job's checkpoints are."""
        return self.options.where(self.trainer.args.output_dir)

    # How it goes

    def run(self) -> Any:
        """Trains to the end, and does what the ``Trainer`` does then.

        Returns:
            The ``Trainer``'s own result.
        """
        trainer = self.trainer
        try:
            self.recovery.run(self._train)
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
        self.recovery.commit()

    def count_epochs(self) -> None:
        """Says how far the step that is complete is in its epoch, whatever its micro-batches."""
        sampler = self.data.sampler
        done = sampler.cursor // self.data.global_batch + 1
        self.trainer.state.epoch = sampler.epoch + done / sampler.steps_in_epoch

    def enter(self, step: int, world_size: int) -> None:
        """A world begins, and the state of the job is in memory.

        Args:
            step: of the commit that it goes on from.
            world_size: how many ranks there are.
        """
        trainer = self.trainer
        self.data.enter(world_size)
        vars(trainer).pop("_eval_dataloaders", None)  # they are for the ranks of the last world
        if hasattr(trainer.optimizer, "train"):
            trainer.optimizer.train()  # an evaluation may have been interrupted
        trainer.callback_handler.callbacks.sort(key=place_of)
        self.notes.enter(step)
        self._callbacks.enter()
        self._tell_batch(world_size)
        trainer.args.gradient_accumulation_steps = self.data.pieces

    def _train(self) -> None:
        """Trains in one world."""
        trainer, sampler = self.trainer, self.data.sampler
        trainer.model_wrapped.zero_grad()
        epoch, done = sampler.epoch, sampler.cursor // self.data.global_batch
        over = False
        if self.notes.finished and self.notes.finished == self.progress.step:
            # All of it was done when the job ended, though perhaps not saved as done.
            self.progress.owes = False
            trainer.control.should_training_stop |= self.notes.stopped
            self._tell_finished()
        if self.progress.owes:
            if sampler.cursor == 0:  # it was the last step of an epoch
                epoch, done, over = epoch - 1, self._steps_of(epoch - 1), True
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
            if (sampler.epoch, sampler.cursor) != (epoch, 0):  # a callback has ended it early
                sampler.epoch, sampler.cursor = epoch, 0
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
            num_update_steps_per_epoch=done if over else self.data.sampler.steps_in_epoch,
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

    def _steps_of(self, epoch: int) -> int:
        """Steps of an epoch that is over."""
        sampler = self.data.sampler
        now, sampler.epoch = sampler.epoch, epoch
        steps = sampler.steps_in_epoch
        sampler.epoch = now
        return steps

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
        whole, micro = self.data.sampler.batch_sizes
        workers = "1 worker" if world_size == 1 else f"{world_size} workers"
        pieces = f", in {self.data.pieces} pieces" if whole > micro else ""
        fixed = "that is fixed for this job"
        if self.data.asked_for != whole:
            fixed += f", though its arguments now ask for {self.data.asked_for}"
        logger.warning(
            "elastic: a step has %d samples over all workers (now %s, %d at once each%s); %s",
            whole,
            workers,
            math.ceil(micro / world_size),
            pieces,
            fixed,
        )
        self._record.write(whole)

    def _tell_finished(self) -> None:
        if self.trainer.is_world_process_zero():
            logger.warning(
                "elastic: this job was trained to its end at step %d; what its arguments ask for "
                "beyond that is trained now. To begin anew, remove %s, or take another directory",
                self.progress.step,
                self.directory,
            )


def leave_our_loaders_alone() -> None:
    """Has a ``Trainer`` skip nothing of data that begin where the job is; to be called once."""
    skip = trainers.skip_first_batches

    def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
        return loader if isinstance(loader, EpochBatches) else skip(loader, num_batches)

    trainers.skip_first_batches = skip_first_batches
