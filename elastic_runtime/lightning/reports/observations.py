"""What a rank has noted of the training for itself: callbacks, metrics, whether to stop.

A new rank gets those of another one, but for sums over ranks, which begin at nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.reports.metric_accumulators import MetricAccumulators
from elastic_runtime.parts import json_tensors
from elastic_runtime.parts.json_tensors import pack_tensor, unpack_tensor
from elastic_runtime.trainers.rank_notes import RankNotes

if TYPE_CHECKING:
    import torch
    from lightning.pytorch import Trainer

    from elastic_runtime.lightning.reports.rank_zero_reports import RankZeroReports

# Whose state is small, so that it is noted at each commit and a rank can go back to it.
_averages = getattr(callbacks, "WeightAveraging", None)  # since Lightning 2.6
_LIGHT = (EarlyStopping, ModelCheckpoint, Timer, *([_averages] if _averages else []))

# What a ModelCheckpoint needs to decide the same on all ranks, and does not save.
_UNSAVED = (
    "current_score",
    "_last_global_step_saved",
    "_last_checkpoint_saved",
    "_defer_save_until_validation",
)


class Observations(RankNotes):
    """Those of one ``Trainer``."""

    def __init__(self, trainer: Trainer, reports: RankZeroReports) -> None:
        """Notes nothing yet.

        Args:
            trainer: whose callbacks and metrics.
            reports: knows where rank 0 reports to.
        """
        super().__init__()
        self._trainer = trainer
        self._reports = reports
        self._accumulators = MetricAccumulators(trainer)
        self._refused: set[str] = set()
        for callback in trainer.callbacks:
            if not isinstance(callback, _LIGHT) and _saves_otherwise(callback):
                rank_zero_warn(
                    f"{type(callback).__name__} keeps a state by on_save_checkpoint alone, which "
                    "is for Lightning's own checkpoints: a worker that joins begins without it; "
                    "give it state_dict and load_state_dict"
                )

    def keep(self) -> dict[str, Any]:
        """What a rank can go back to."""
        return {
            "metrics": self._accumulators.keep(),
            "callbacks": {c.state_key: _state_of(c) for c in self._light()},
            "should_stop": self._trainer.should_stop,
        }

    def _light(self) -> list[Callback]:
        return [c for c in self._trainer.callbacks if isinstance(c, _LIGHT)]

    def go_back(self, kept: dict[str, Any]) -> None:
        """Makes them what was kept."""
        self._accumulators.go_back(kept["metrics"])
        for callback in self._light():
            if callback.state_key in kept["callbacks"]:
                _restore(callback, kept["callbacks"][callback.state_key])
        self._trainer.should_stop = kept["should_stop"]

    def for_others(self) -> dict[str, Any]:
        """Them as plain JSON."""
        states = {}
        for callback in self._trainer.callbacks:
            state = _state_of(callback)
            if state:
                try:
                    states[callback.state_key] = _packed(state, callback.state_key)
                except UsageError as error:
                    self._refuse(callback.state_key, error)
        return {
            "callbacks": states,
            "should_stop": self._trainer.should_stop,
            "metrics": self._accumulators.for_others(),
            "places": self._reports.places(),
        }

    def take(self, told: dict[str, Any], *, begins: bool) -> None:
        """Takes over those of another rank; of a job that begins, only where it reports to."""
        self._reports.take_places(told["places"])
        if begins:
            return
        for callback in self._trainer.callbacks:
            packed = told["callbacks"].get(callback.state_key)
            if packed is not None:
                _restore(callback, _unpacked(packed))
        self._trainer.should_stop = told["should_stop"]
        self._accumulators.take(told["metrics"])

    def _refuse(self, name: str, why: UsageError) -> None:
        if name not in self._refused:
            self._refused.add(name)
            rank_zero_warn(
                f"the state of the callback {name} is neither saved nor given to new ranks: {why}"
            )


def _saves_otherwise(callback: Callback) -> bool:
    saves, states = (
        is_overridden(n, callback, Callback) for n in ("on_save_checkpoint", "state_dict")
    )
    return bool(saves and not states)


def _state_of(callback: Callback) -> dict[str, Any]:
    state = dict(callback.state_dict())
    if isinstance(callback, ModelCheckpoint):
        state |= {name: getattr(callback, name) for name in _UNSAVED if hasattr(callback, name)}
        state["best_k_models"] = dict(state["best_k_models"])
    return state


def _restore(callback: Callback, state: dict[str, Any]) -> None:
    if isinstance(callback, ModelCheckpoint):
        for name in _UNSAVED:
            if name in state:
                setattr(callback, name, state[name])
        state = state | {"best_k_models": dict(state["best_k_models"])}
    callback.load_state_dict(state)


def _packed(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A state as plain JSON."""
    tensors: list[torch.Tensor] = []
    structure = json_tensors.encode(state, name, tensors)
    return {"structure": structure, "tensors": [pack_tensor(tensor) for tensor in tensors]}


def _unpacked(packed: dict[str, Any]) -> dict[str, Any]:
    tensors = [unpack_tensor(each) for each in packed["tensors"]]
    state: dict[str, Any] = json_tensors.decode(packed["structure"], tensors)
    return state
