"""The loop over the batches of an epoch, which commits each step and can go on anywhere.

What follows a step (a validation, schedulers that wait for a metric, the loggers) comes after its
commit, as it may take long and fail by itself. Until the next commit it counts as owed: a process
that goes on from a commit does first what is owed. The restart stages of Lightning's own loops are
not used: they guess from the counters where a checkpoint was made, and skip the end of an epoch
that was interrupted at its last batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.loops.validation_guard import guarded

if TYPE_CHECKING:
    from lightning.pytorch.loops.fetchers import _DataFetcher


class ElasticEpochLoop(_TrainingEpochLoop):  # type: ignore[misc]  # Lightning is not typed here
    """Takes the place of Lightning's own.

    Attributes:
        owes: what follows the newest batch is not done yet.
    """

    owes = False
    _stepped = 0  # what the optimizers have counted at the last commit

    def run(self, data_fetcher: _DataFetcher) -> None:
        """Trains to the end of the epoch, from wherever the counters are."""
        fit_loop = self.trainer.fit_loop
        if not fit_loop.goes_on:
            self.reset()
        fit_loop.begin_reading()
        self.on_run_start(data_fetcher)
        if self.owes:
            self._settle(data_fetcher)
        self._stepped = self.global_step
        while not self.done:
            try:
                self.advance(data_fetcher)
            except StopIteration:  # of a hook that ends the epoch
                break
            finally:
                self.on_iteration_done()
            self._check_weighed()
            if self._is_step():
                fit_loop.commit()  # of all batches since the last one
                self._stepped = self.global_step
            self.owes = True
            self._settle(data_fetcher)

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """As Lightning's, but the iteration has begun already."""
        data_fetcher.fetched += self.batch_progress.current.ready
        data_fetcher._start_profiler = self._on_before_fetch
        data_fetcher._stop_profiler = self._on_after_fetch

    @property
    def _is_manual(self) -> bool:
        return not self.trainer.lightning_module.automatic_optimization

    def _check_weighed(self) -> None:
        """Refuses gradients of a module's own that do not count as much as their samples."""
        step = self.trainer.fit_loop.train_data.batches.step
        if self._is_manual and self.global_step > self._stepped and step.unweighed:
            raise UsageError(
                "training_step has stepped an optimizer without self.manual_backward(loss), which "
                "gives each rank's loss its weight: where shares of ranks differ in size, the "
                "gradients would not be those of the global batch; call it instead of "
                "loss.backward()"
            )
        step.count_as_weighed()  # a batch that training_step leaves out has no gradients

    def _is_step(self) -> bool:
        """Whether the batch has completed a step; the last one of an epoch does in any case."""
        if not self._is_manual:
            return not self._should_accumulate()
        return bool(self.global_step > self._stepped or self._num_ready_batches_reached())

    def _settle(self, data_fetcher: _DataFetcher) -> None:
        """Does what follows a batch."""
        if self._should_check_val_fx(data_fetcher):
            with elastic.busy("validation"), guarded(self.trainer):
                self.on_advance_end(data_fetcher)
        else:
            self.on_advance_end(data_fetcher)
        self.owes = False

    def _broadcast_sigterm_tensor(self) -> None:
        """Does nothing: leaving is agreed on at commits, not by a broadcast before each batch."""

    def _get_monitor_value(self, key: str) -> Any:
        """The mean over ranks: with values of their own their learning rates would part ways."""
        value = super()._get_monitor_value(key)
        if value is None:
            return None
        strategy = self.trainer.strategy
        own = torch.as_tensor(value).detach().clone().to(strategy.root_device)
        return strategy.reduce(own, reduce_op="mean")
