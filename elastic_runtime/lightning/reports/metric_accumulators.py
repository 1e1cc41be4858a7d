"""What ``self.log`` has summed up since the epoch began, and the newest value of each metric.

Lightning loses it in a restart: the mean of an epoch is then that of its rest. Here a rank that
goes on keeps it, without what an interrupted step has added; a new rank adds nothing to sums over
ranks, and has otherwise what another rank has.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)

from elastic_runtime.parts.json_tensors import pack_tensor, unpack_tensor

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

# Of a metric that is summed up. The values are never changed in place, so that it is enough to
# remember which they were.
_PARTS = (
    "value",
    "cumulated_batch_size",
    "has_reset",
    "_forward_cache",
    "_computed",
    "_update_count",
)
_LATEST = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_META = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "dataloader_idx",
    "metric_attribute",
)


class Kept(NamedTuple):
    """How they were at one time.

    Attributes:
        sums: of each metric that is summed up.
        latest: the newest values.
        stage: where the trainer was.
    """

    sums: dict[str, dict[str, Any]]
    latest: dict[str, dict[str, Any]]
    stage: tuple[str | None, bool | None]


class MetricAccumulators:
    """Those of one ``Trainer``, in training."""

    def __init__(self, trainer: Trainer) -> None:
        """Refers to them.

        Args:
            trainer: whose.
        """
        self._trainer = trainer

    def keep(self) -> Kept:
        """How they are now."""
        connector = self._trainer._logger_connector
        sums = {
            key: {name: vars(metric)[name] for name in _PARTS if name in vars(metric)}
            for key, metric in self._results.items()
            if metric.is_tensor
        }
        latest = {name: dict(getattr(connector, name)) for name in _LATEST}
        return Kept(sums, latest, (connector._current_fx, connector._first_loop_iter))

    def go_back(self, kept: Kept) -> None:
        """Makes them what they were then."""
        results, connector = self._results, self._trainer._logger_connector
        for key in [key for key, metric in results.items() if metric.is_tensor]:
            if key in kept.sums:
                vars(results[key]).update(kept.sums[key])
            else:
                del results[key]  # logged first in the step that is undone
        for name, values in kept.latest.items():
            setattr(connector, name, dict(values))
        connector._current_fx, connector._first_loop_iter = kept.stage
        results.batch = results.batch_size = results.dataloader_idx = None

    def for_others(self) -> dict[str, Any]:
        """What a new rank must know, as plain JSON."""
        connector = self._trainer._logger_connector
        return {
            "sums": [[key, _described(metric)] for key, metric in self._results.items()],
            "latest": {
                name: {key: _packed(value) for key, value in getattr(connector, name).items()}
                for name in _LATEST
            },
            "stage": [connector._current_fx, connector._first_loop_iter],
        }

    def take(self, told: dict[str, Any]) -> None:
        """Takes over what another rank has told."""
        connector, results = self._trainer._logger_connector, self._results
        results.clear()
        for key, description in told["sums"]:
            metric = self._metric(description)
            if metric is not None:
                results[key] = metric
        device = self._trainer.strategy.root_device
        for name, values in told["latest"].items():
            there = {key: _unpacked(value, device) for key, value in values.items()}
            setattr(connector, name, there)
        connector._current_fx, connector._first_loop_iter = told["stage"]

    @property
    def _results(self) -> Any:
        return self._trainer.fit_loop.epoch_loop._results

    def _metric(self, told: dict[str, Any]) -> _ResultMetric | None:
        strategy, module = self._trainer.strategy, self._trainer.lightning_module
        meta = _Metadata(**told["meta"], reduce_fx=told["reduce_fx"])
        should, alone = told["sync"]
        meta.sync = _Sync(_should=should, fn=strategy.reduce, rank_zero_only=alone)
        metric = _ResultMetric(meta, told["is_tensor"])
        if not told["is_tensor"]:
            try:
                metric.value = attrgetter(meta.metric_attribute)(module)
            except (AttributeError, TypeError):
                return None
        elif not should:
            for name, value in told["parts"].items():
                setattr(metric, name, _unpacked(value, strategy.root_device))
        metric.to(strategy.root_device)
        metric.has_reset = told["has_reset"]
        metric._update_count = 1
        return metric


def _described(metric: _ResultMetric) -> dict[str, Any]:
    meta = metric.meta
    values = vars(metric)
    parts = ("value", "cumulated_batch_size", "_forward_cache") if metric.is_tensor else ()
    return {
        "meta": {name: getattr(meta, name) for name in _META},
        "reduce_fx": meta.reduce_fx.__name__,
        "sync": [meta.sync.should, meta.sync.rank_zero_only],
        "is_tensor": metric.is_tensor,
        "has_reset": metric.has_reset,
        "parts": {n: _packed(values[n]) for n in parts if values.get(n) is not None},
    }


def _packed(value: Any) -> list[Any]:
    return ["tensor", *pack_tensor(value)] if torch.is_tensor(value) else ["number", value]


def _unpacked(packed: list[Any], device: torch.device) -> Any:
    kind, *rest = packed
    return unpack_tensor(rest).to(device) if kind == "tensor" else rest[0]
