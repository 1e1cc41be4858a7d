"""The counters of Lightning's loops, as one entry of a State and of checkpoints.

Lightning can save them itself, but copies some sixty nested dictionaries each time, and a state is
remembered at each commit.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loops.progress import _BaseProgress

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.lightning.loops.elastic_fit_loop import ElasticFitLoop


class LoopCounters:
    """How far the loops are: the same numbers on all ranks, as a batch is one of all ranks."""

    def __init__(self, fit_loop: ElasticFitLoop) -> None:
        """Refers to the counters of these loops.

        Args:
            fit_loop: with its epoch loop, whose data are set up.
        """
        self._loop = fit_loop
        epoch_loop = fit_loop.epoch_loop
        progress = {
            "epoch": fit_loop.epoch_progress,
            "batch": epoch_loop.batch_progress,
            "scheduler": epoch_loop.scheduler_progress,
            "automatic": epoch_loop.automatic_optimization.optim_progress,
            "manual": epoch_loop.manual_optimization.optim_step_progress,
        }
        steps = epoch_loop.automatic_optimization.optim_progress.optimizer.step
        of_a_batch = (
            epoch_loop.batch_progress,
            epoch_loop.scheduler_progress,
            steps,
            epoch_loop.manual_optimization.optim_step_progress,
        )
        self._trackers = [t for counters in of_a_batch for t in (counters.current, counters.total)]
        self._numbers = [
            (f"{name}.{where}", owner, attribute)
            for name, counters in progress.items()
            for where, owner, attribute in _numbers_in(counters)
        ]

    def commit(self) -> None:
        """The batch that is under way is complete, and what follows it is owed."""
        epoch_loop = self._loop.epoch_loop
        for tracker in self._trackers:
            _level(tracker, tracker.ready)
        epoch_loop.owes = True

    def state_dict(self) -> dict[str, Any]:
        """All numbers, by name."""
        loop = self._loop
        state = {name: getattr(owner, attribute) for name, owner, attribute in self._numbers}
        state["batches_that_stepped"] = loop.epoch_loop._batches_that_stepped
        state["owes"] = loop.epoch_loop.owes
        state["batch"] = loop.train_data.loader.global_batch_size
        state["accumulated"] = loop.trainer.accumulate_grad_batches
        state["batches"] = loop.max_batches
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets all numbers; the global batch becomes that of the job.

        Raises:
            UsageError: an epoch has another number of batches here.
        """
        loop = self._loop
        batch, own = int(state["batch"]), loop.train_data.loader.global_batch_size
        if own != batch:  # batch_record.py could not tell it in time
            warnings.warn(
                f"the job has a global batch of {batch} samples, and this process has begun "
                f"with {own}: a schedule that was made of estimated_stepping_batches is another "
                f"one than on the other ranks; give global_batch={batch}",
                stacklevel=2,
            )
        loop.train_data.loader.global_batch_size = batch
        if loop.trainer.lightning_module.automatic_optimization:
            loop.trainer.accumulate_grad_batches = int(state["accumulated"])
        loop.count_batches()
        if loop.max_batches != state["batches"] and state["batch.current.ready"]:
            raise UsageError(
                f"an epoch had {state['batches']} batches when this state was saved, and has "
                f"{loop.max_batches} now, in the middle of one; give the same data, batch_size and "
                "limit_train_batches until that epoch is over"
            )
        for name, owner, attribute in self._numbers:
            if name in state:  # other versions of Lightning may count other things
                setattr(owner, attribute, state[name])
        loop.epoch_loop._batches_that_stepped = state["batches_that_stepped"]
        loop.epoch_loop.owes = state["owes"]


def settle_loaded(fit_loop: ElasticFitLoop) -> None:
    """Goes on, after ``fit(ckpt_path=)``, from the counters of a checkpoint of Lightning's own.

    It may have been made before or after the end of an epoch was done with; here it counts as done.

    Args:
        fit_loop: has loaded them, and its data are set up.
    """
    batch, epoch = fit_loop.epoch_loop.batch_progress, fit_loop.epoch_progress
    loader = fit_loop.train_data.loader
    fit_loop.restarting = False
    for loop in (fit_loop, fit_loop.epoch_loop, fit_loop.epoch_loop.val_loop):
        loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    done = batch.current.ready
    is_last = batch.is_last_batch or done >= fit_loop.max_batches
    if epoch.current.ready > epoch.current.processed and done and not is_last:
        done -= done % fit_loop.trainer.accumulate_grad_batches  # what it was is not saved
        loader.go_to(epoch.current.processed, done * loader.global_batch_size)
        _level(batch.current, done)
        _level(batch.total, batch.total.ready)
    else:
        _level(epoch.current, epoch.current.ready)
        _level(epoch.total, epoch.total.ready)
        fit_loop.train_data.begin_epoch(epoch.current.ready)


def _level(tracker: Any, number: int) -> None:
    """Everything that is begun is completed."""
    for name in vars(tracker):
        setattr(tracker, name, number)


def _numbers_in(counters: _BaseProgress) -> Iterator[tuple[str, Any, str]]:
    """Where each number is: its path, the object that has it, and the attribute's name."""
    for name, value in vars(counters).items():
        if isinstance(value, _BaseProgress):
            yield from ((f"{name}.{path}", *rest) for path, *rest in _numbers_in(value))
        else:
            yield name, counters, name
