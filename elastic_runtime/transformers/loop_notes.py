"""What a ``Trainer`` has noted on a rank: logs, sums of losses, callbacks, and what is due."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState, TrainerControl
from transformers.utils import logging

from elastic_runtime.trainers.rank_notes import RankNotes
from elastic_runtime.trainers.small_tensors import pack_tensor, unpack_tensor

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.get_logger("transformers.elastic")

# Of a TrainerState, what changes with the steps. global_step is Progress's.
_OF_STATE = (
    "epoch",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")


class LoopNotes(RankNotes):
    """Those of one ``Trainer``.

    Attributes:
        grad_norm, learning_rate: of the newest step, for its logs.
    """

    def __init__(self, trainer: Trainer) -> None:
        """Notes nothing yet.

        Args:
            trainer: whose.
        """
        super().__init__()
        self._trainer = trainer
        self._noted: dict[str, Any] = {}
        self._refused: set[str] = set()
        self._lines: list[str] = []  # the logs as JSON: there may be many of them
        self.grad_norm: Any = None
        self.learning_rate: float | None = None

    def keep(self) -> None:
        """Remembers what a rank can go back to."""
        trainer = self._trainer
        self._noted = {
            "sums": {name: getattr(trainer, name) for name in _SUMS},
            "state": {name: getattr(trainer.state, name) for name in _OF_STATE},
            "logged": len(trainer.state.log_history),
            "control": trainer.control.state()["args"],
            "callbacks": self._callback_states(),
            "newest": (self.grad_norm, self.learning_rate),
        }
        # It is added to in place.
        self._noted["sums"]["_tr_loss"] = trainer._tr_loss.clone()

    def go_back(self) -> None:
        """Makes them what was remembered last."""
        trainer, noted = self._trainer, self._noted
        for name, value in noted["sums"].items():
            setattr(trainer, name, value)
        trainer._tr_loss = noted["sums"]["_tr_loss"].clone()
        for name, value in noted["state"].items():
            setattr(trainer.state, name, value)
        del trainer.state.log_history[noted["logged"] :]
        del self._lines[noted["logged"] :]
        self.grad_norm, self.learning_rate = noted["newest"]
        self._restore(noted["control"], noted["callbacks"])

    def for_others(self) -> dict[str, Any]:
        """Them as plain JSON."""
        trainer = self._trainer
        sums = {name: getattr(trainer, name) for name in _SUMS}
        return {
            "sums": {**sums, "_tr_loss": pack_tensor(trainer._tr_loss)},
            "state": {name: _plain(getattr(trainer.state, name)) for name in _OF_STATE},
            "history": self._history(),
            "control": trainer.control.state()["args"],
            "at_limit": trainer.state.global_step >= trainer.state.max_steps,
            "step": trainer.state.global_step,
            "callbacks": self._callback_states(),
            "newest": [_plain(self.grad_norm), _plain(self.learning_rate)],
        }

    def take(self, told: dict[str, Any], *, begins: bool) -> None:
        """Takes over those of another rank; of a job that begins there is nothing to take."""
        if begins:
            return
        trainer = self._trainer
        for name, value in told["sums"].items():
            setattr(trainer, name, value)
        # A new rank has no losses of its own since the last logs; those of another one stand for
        # them in the mean over ranks.
        trainer._tr_loss = unpack_tensor(told["sums"]["_tr_loss"]).to(trainer.args.device)
        for name, value in told["state"].items():
            setattr(trainer.state, name, value)
        self._lines = told["history"].splitlines()
        trainer.state.log_history = [json.loads(line) for line in self._lines]
        self.grad_norm, self.learning_rate = told["newest"]
        control = dict(told["control"])
        if told["at_limit"] and told["step"] < trainer.state.max_steps:
            control["should_training_stop"] = False  # the job was ended, and is to train on
        self._restore(control, told["callbacks"])

    def _history(self) -> str:
        """All logs, a line of JSON for each."""
        new = self._trainer.state.log_history[len(self._lines) :]
        self._lines += [json.dumps({k: _plain(v) for k, v in each.items()}) for each in new]
        return "\n".join(self._lines)

    def _callbacks(self) -> dict[str, ExportableState]:
        """Those with a state that others can be told, by a name that is the same on all ranks."""
        found: dict[str, ExportableState] = {}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState) and not isinstance(callback, TrainerControl):
                name = type(callback).__name__
                count = sum(key.partition("#")[0] == name for key in found)
                found[f"{name}#{count}"] = callback
        return found

    def _callback_states(self) -> dict[str, Any]:
        states = {}
        for name, callback in self._callbacks().items():
            try:
                states[name] = json.loads(json.dumps(callback.state()["attributes"]))
            except (TypeError, ValueError, KeyError) as error:
                self._refuse(name.partition("#")[0], error)
        return states

    def _restore(self, control: dict[str, Any], callbacks: dict[str, Any]) -> None:
        for name, value in control.items():
            setattr(self._trainer.control, name, value)
        for name, callback in self._callbacks().items():
            for attribute, value in callbacks.get(name, {}).items():
                setattr(callback, attribute, value)

    def _refuse(self, name: str, why: Exception) -> None:
        if name not in self._refused:
            self._refused.add(name)
            logger.warning(
                "the state of the callback %s is neither saved nor given to new ranks, as it is no "
                "plain JSON: %r",
                name,
                why,
            )


def _plain(value: Any) -> Any:
    """A number of NumPy's or torch's as one of Python's."""
    single = hasattr(value, "item") and getattr(value, "size", None) is not None
    return value.item() if single and math.prod(getattr(value, "shape", ())) == 1 else value
