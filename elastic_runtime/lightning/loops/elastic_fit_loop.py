"""The loop over epochs, which is entered once more in each new world, with all that is loaded.

Everything that ``Trainer.fit`` does before its loops (``setup``, ``configure_model``, optimizers,
the sanity check) is done once in each process and without other ranks, so that a replacement does
it while the others train. Only the loops are run in a world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.states import RunningStage

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.loops.elastic_epoch_loop import ElasticEpochLoop
from elastic_runtime.lightning.loops.loop_counters import settle_loaded
from elastic_runtime.lightning.loops.train_data import TrainData

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import Trainer

    from elastic_runtime.lightning.loops.train_data import DataSettings


class FitRunner(Protocol):
    """What a fit loop belongs to: it goes on after faults."""

    def run(self, fit: Callable[[], None]) -> None:
        """Trains, with as many calls of ``fit`` as there are worlds."""

    def commit(self) -> None:
        """A step is complete; it may not return."""

    def save(self) -> None:
        """Saves what is reached."""


class ElasticFitLoop(_FitLoop):  # type: ignore[misc]  # Lightning is not typed here
    """Takes the place of Lightning's own.

    Attributes:
        train_data: where its data come from.
        job: set before it runs.
        goes_on: the epoch that is under way was begun before, perhaps by other processes.
    """

    job: FitRunner
    max_batches: float

    def __init__(self, replaced: _FitLoop, settings: DataSettings) -> None:
        """Takes over limits and data.

        Args:
            replaced: that of the ``Trainer``, whose data are attached already.
            settings: about batches and order.
        """
        trainer: Trainer = replaced.trainer
        super().__init__(trainer, replaced.min_epochs, replaced.max_epochs)
        epoch_loop = ElasticEpochLoop(trainer, replaced.min_steps, replaced.max_steps)
        epoch_loop.val_loop._data_source = replaced.epoch_loop.val_loop._data_source
        self.epoch_loop = epoch_loop
        self.train_data = self._data_source = TrainData(replaced._data_source, trainer, settings)
        self.goes_on = False
        self._written = trainer.accumulate_grad_batches
        self._started = False  # on_train_start was called in this process
        self._epoch_here = -1  # the newest epoch that on_train_epoch_start was called for here

    def run(self) -> None:
        """Trains until the end, whatever happens."""
        if self._nothing_to_train():
            super().run()
            return
        self.setup_data()
        if isinstance(self._data_fetcher, _DataLoaderIterDataFetcher):
            raise UsageError(
                "training_step(dataloader_iter) takes as many batches as it likes, so that the "
                "position in the data is not known; take training_step(batch, batch_idx)"
            )
        if self._loaded_from_state_dict:
            settle_loaded(self)
        val_loop = self.epoch_loop.val_loop
        if self.epoch_loop._should_check_val_epoch() and self.trainer.val_dataloaders is None:
            self.trainer.validating = True
            val_loop.setup_data()
            self.trainer.training = True
        self.job.run(self._fit)

    def commit(self) -> None:
        """Commits the step that the epoch loop has just completed."""
        self.job.commit()

    def begin_reading(self) -> None:
        """Has the data begin where the sampler is, if they do not yet."""
        assert self._data_fetcher is not None
        if self.train_data.batches.is_ready:
            self._data_fetcher.reset()
        else:
            iter(self._data_fetcher)

    def count_batches(self) -> None:
        """Counts the batches of an epoch anew, after the size of a batch has changed."""
        trainer: Trainer = self.trainer
        length, limit = len(self.train_data.batches), trainer.limit_train_batches
        batches = _parse_num_batches(RunningStage.TRAINING, length, limit)
        if batches == self.max_batches:
            return
        self.max_batches = batches
        assert self._combined_loader is not None
        self._combined_loader.limits = [batches]
        if isinstance(trainer.val_check_interval, float):
            trainer.val_check_batch = max(1, int(batches * trainer.val_check_interval))

    @property
    def done(self) -> bool:
        """Whether all is trained, and nothing is owed to the last batch."""
        return not self.epoch_loop.owes and bool(super().done)

    def reset(self) -> None:
        """Leaves the counters alone: they are right as they are."""
        torch.set_grad_enabled(True)

    def on_run_start(self) -> None:
        """Calls ``on_train_start``, once in a process."""
        if not self._started:
            self._started = True
            self._warn_of_eval_mode()
            trainer = self.trainer
            # A callback that plans it wants to see what the user has written, and not the job's.
            planned = trainer.accumulate_grad_batches
            trainer.accumulate_grad_batches = self._written
            call._call_callback_hooks(trainer, "on_train_start")
            call._call_lightning_module_hook(trainer, "on_train_start")
            call._call_strategy_hook(trainer, "on_train_start")
            trainer.accumulate_grad_batches = planned

    def on_advance_start(self) -> None:
        """Begins an epoch, or goes on in one."""
        counters = self.epoch_progress.current
        self.goes_on = counters.ready > counters.processed
        epoch = counters.processed
        if not self.goes_on:
            self.train_data.begin_epoch(epoch)
            super().on_advance_start()
            self.train_data.begin_epoch(epoch)  # a callback may have changed the accumulation
        elif self._epoch_here != epoch:
            call._call_callback_hooks(self.trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(self.trainer, "on_train_epoch_start")
        self._epoch_here = epoch

    def on_advance_end(self) -> None:
        """Ends an epoch; what follows the commit of its last step is not under way any more."""
        super().on_advance_end()
        self.goes_on = False

    def _fit(self) -> None:
        """Runs the loops in one world."""
        self._leave_interrupted()
        if self.done:
            return
        self.reset()
        self.on_run_start()
        while not self.done:
            try:
                self.on_advance_start()
                self.advance()
                if self._ends_early():
                    self.job.save()  # so that it is continued in the middle of the epoch
                self.on_advance_end()
            except StopIteration:
                break
            finally:
                self.on_iteration_done()
        self.job.save()
        self.on_run_end()

    def _leave_interrupted(self) -> None:
        """Leaves whatever was under way when the last world ended."""
        trainer, val_loop = self.trainer, self.epoch_loop.val_loop
        module = trainer.lightning_module
        if trainer.validating:
            val_loop._module_mode.restore(module)
            val_loop._results.reset()  # it would be added to what the next validation sums up
        trainer.training = True
        module._current_fx_name = None
        self.train_data.batches.enter()
        # Its samplers are those of the last world.
        val_loop._combined_loader = None
        val_loop._data_fetcher = None

    def _ends_early(self) -> bool:
        """Whether training ends in the middle of an epoch, by ``max_steps`` or ``should_stop``."""
        counters = self.epoch_loop.batch_progress
        is_last = counters.is_last_batch or counters.current.ready >= self.max_batches
        stops = self.trainer.should_stop or self.epoch_loop.global_step == self.max_steps
        return stops and not is_last

    def _nothing_to_train(self) -> bool:
        return 0 in (self.trainer.limit_train_batches, self.max_epochs, self.max_steps)

    def _warn_of_eval_mode(self) -> None:
        warn: Any = getattr(self, "_warn_if_modules_in_eval_mode", None)
        if warn is not None:  # since Lightning 2.6
            warn()
