"""Progress bars and loggers of a ``Trainer``: what belongs to the rank 0 of the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import ProgressCallback

if TYPE_CHECKING:
    from transformers import Trainer


class RankZeroCallbacks:
    """Hands bars and loggers to the process that is rank 0."""

    def __init__(self, trainer: Trainer) -> None:
        """Nothing is handed over yet.

        Args:
            trainer: whose callbacks.
        """
        self._trainer = trainer
        self._began = False  # on_train_begin was called in this process
        self._is_zero = False

    def enter(self) -> None:
        """A world begins, and the trainer knows its ranks."""
        trainer = self._trainer
        state = trainer.state
        state.is_world_process_zero = trainer.is_world_process_zero()
        state.is_local_process_zero = trainer.is_local_process_zero()
        if not self._began:
            stops = trainer.control.should_training_stop  # on_train_begin sets it to False
            handler = trainer.callback_handler
            trainer.control = handler.on_train_begin(trainer.args, state, trainer.control)
            trainer.control.should_training_stop |= stops
            self._began = True
        else:
            self._leave_evaluation()
            if state.is_world_process_zero and not self._is_zero:
                self._open()
            elif self._is_zero and not state.is_world_process_zero:
                self._close()
        self._is_zero = state.is_world_process_zero

    def _open(self) -> None:
        """It takes over in the middle: what was not opened here is opened now."""
        trainer = self._trainer
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback):
                callback.on_train_begin(trainer.args, trainer.state, trainer.control)
            elif type(callback).__module__.startswith("transformers."):
                # Those of trackers open theirs with the next log, unless they think that they have.
                if getattr(callback, "_initialized", False) is True:
                    callback._initialized = False

    def _close(self) -> None:
        for callback in self._trainer.callback_handler.callbacks:
            bar = getattr(callback, "training_bar", None)
            if bar is not None:
                bar.close()
                callback.training_bar = None

    def _leave_evaluation(self) -> None:
        """The bar of an evaluation that the last world did not end."""
        for callback in self._trainer.callback_handler.callbacks:
            bar = getattr(callback, "prediction_bar", None)
            if bar is not None:
                bar.close()
                callback.prediction_bar = None
