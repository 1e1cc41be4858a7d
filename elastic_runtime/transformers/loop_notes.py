"""What a ``Trainer`` has noted on a rank: logs, sums of losses, callbacks, and what is due."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState, TrainerControl
from transformers.utils import logging

from elastic_runtime.parts.json_tensors import pack_tensor, unpack_tensor
from elastic_runtime.trainers.rank_notes import RankNotes

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
_SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_BEGAN = ("_initial_global_step", "_initial_num_input_tokens_seen")


class LoopNotes(RankNotes):
    """Those of one ``Trainer``.

    Attributes:
        grad_norm, learning_rate: of the newest step, for its logs.
        started: when training began, as ``time.time`` says; time without training does not count.
        finished: the last step of a job that has come to its end, as far as is known; 0: none.
        stopped: it was ended by a callback.
    """

    def __init__(self, trainer: Trainer, finished: int = 0) -> None:
        """Notes nothing yet.

        Args:
            trainer: whose.
            finished: see above.
        """
        super().__init__()
        self._trainer = trainer
        self.started, self.finished, self.stopped = time.time(), finished, False
        self._refused: set[str] = set()
        self._lines: list[str] = []  # the logs as JSON: there may be many of them
        self.grad_norm: Any = None
        self.learning_rate: float | None = None

    def keep(self) -> dict[str, Any]:
        """What a rank can go back to."""
        trainer = self._trainer
        return {
            "loss": trainer._tr_loss.clone(),  # it is added to in place
            "sums": {name: getattr(trainer, name) for name in _SUMS},
            "state": {name: getattr(trainer.state, name) for name in _OF_STATE},
            "logged": len(trainer.state.log_history),
            "control": trainer.control.state()["args"],
            "callbacks": self._callback_states(),
            "newest": (self.grad_norm, self.learning_rate),
        }

    def go_back(self, kept: dict[str, Any]) -> None:
        """Makes them what was kept."""
        trainer = self._trainer
        trainer._tr_loss = kept["loss"].clone()
        _set(trainer, kept["sums"])
        _set(trainer.state, kept["state"])
        del trainer.state.log_history[kept["logged"] :]
        del self._lines[kept["logged"] :]
        self.grad_norm, self.learning_rate = kept["newest"]
        self._restore(kept["control"], kept["callbacks"])

    def for_others(self) -> dict[str, Any]:
        """Them as plain JSON."""
        trainer = self._trainer
        told = {
            "loss": pack_tensor(trainer._tr_loss),
            "sums": {name: getattr(trainer, name) for name in (*_SUMS, *_BEGAN)},
            "state": {name: getattr(trainer.state, name) for name in _OF_STATE},
            "history": self._history(),
            "elapsed": time.time() - self.started,
            "control": trainer.control.state()["args"],
            "step": trainer.state.global_step,
            "at_limit": trainer.state.global_step >= trainer.state.max_steps,
            "callbacks": self._callback_states(),
            "newest": [self.grad_norm, self.learning_rate],
        }
        plain: dict[str, Any] = json.loads(json.dumps(told, default=_plain))
        return plain

    def take(self, told: dict[str, Any], *, begins: bool) -> None:
        """Takes over those of another rank; of a job that begins there is nothing to take."""
        if begins:
            return
        trainer = self._trainer
        trainer._tr_loss = unpack_tensor(told["loss"]).to(trainer.args.device)
        _set(trainer, told["sums"])
        _set(trainer.state, told["state"])
        self._lines = told["history"].splitlines()
        trainer.state.log_history = [json.loads(line) for line in self._lines]
        self.started = time.time() - told["elapsed"]
        self.grad_norm, self.learning_rate = told["newest"]
        control = dict(told["control"])
        if told["at_limit"] and told["step"] < trainer.state.max_steps:
            control["should_training_stop"] = False  # the job was ended, and is to train on
        self._restore(control, told["callbacks"])

    def to_share(self) -> list[Any]:
        """The sum of losses since the last logs; and what is known of the end."""
        return [float(self._trainer._tr_loss), self.finished, self.stopped]

    def take_shared(self, shares: list[Any]) -> None:
        """Has all ranks go on with the mean sum of losses.

        The mean over ranks is logged: so it does not depend on who comes and goes.
        """
        if shares:
            mean = sum(loss for loss, *_ in shares) / len(shares)
            self._trainer._tr_loss.fill_(mean)
            _, self.finished, self.stopped = shares[0]

    def _history(self) -> str:
        """All logs, a line of JSON for each."""
        new = self._trainer.state.log_history[len(self._lines) :]
        self._lines += [json.dumps(each, default=_plain) for each in new]
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


def _set(owner: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _plain(value: Any) -> Any:
    """What JSON does not know: a number or an array of NumPy's or torch's, or something else."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
