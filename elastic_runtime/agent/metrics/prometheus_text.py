"""What was measured, in Prometheus' text format. Imported with the first scrape, and not before."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from elastic_runtime.events.round_events import RESTART_CLASSES
from elastic_runtime.limits import HISTOGRAM_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.agent.metrics.metrics_fold import Histogram, Measured

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(state: Measured, run_id: str, node: str, now: float) -> bytes:
    """All metrics of an agent.

    Args:
        state: what was measured.
        run_id: of the job.
        node: the node's name.
        now: on the clock of the measurements.
    """
    return generate_latest(_Collector(state, run_id, node, now))


class _Collector(Collector):
    """One scrape; ``generate_latest`` wants no more of a registry than this."""

    def __init__(self, state: Measured, run_id: str, node: str, now: float) -> None:
        self._state, self._now = state, now
        self._names = {"run_id": run_id, "node": node}

    def collect(self) -> Iterator[Metric]:
        yield from self._world()
        yield from self._steps()
        yield from self._checkpoints()

    def _world(self) -> Iterator[Metric]:
        state = self._state
        agent = GaugeMetricFamily(
            "elastic_agent_info", "Which agent this is.", labels=list(self._names)
        )
        agent.add_metric(list(self._names.values()), 1)
        yield agent
        yield GaugeMetricFamily("elastic_round", "Number of the round.", state.round)
        yield GaugeMetricFamily("elastic_world_size", "Workers in the round.", state.world)
        yield GaugeMetricFamily("elastic_nodes", "Nodes in the round.", state.nodes)
        yield GaugeMetricFamily("elastic_ready", "1: this node is in the round.", state.ready)
        restarts = CounterMetricFamily(
            "elastic_restarts",
            "Rounds of the job that ended, by what ended them.",
            labels=["class"],
        )
        for name in RESTART_CLASSES:
            restarts.add_metric([name], state.restarts[name])
        yield restarts
        recovery = HistogramMetricFamily(
            "elastic_recovery_seconds",
            "From the last step of a round to the first one of the next (the node of rank 0).",
            labels=["phase", "class"],
        )
        for labels, seconds in sorted(state.recovery.items()):
            recovery.add_metric(list(labels), _buckets(seconds), seconds.total)
        yield recovery

    def _steps(self) -> Iterator[Metric]:
        state, goodput = self._state, self._state.goodput(self._now)
        yield CounterMetricFamily(
            "elastic_steps", "Steps made by this node's workers, repeated ones too.", state.steps
        )
        yield CounterMetricFamily(
            "elastic_lost_steps", "Steps that had to be made again.", state.lost
        )
        if state.step >= 0:
            yield GaugeMetricFamily("elastic_step", "The last committed step.", state.step)
        if goodput is not None:
            yield GaugeMetricFamily(
                "elastic_goodput_ratio", "Share of the time in which kept steps advanced.", goodput
            )

    def _checkpoints(self) -> Iterator[Metric]:
        state = self._state
        yield HistogramMetricFamily(
            "elastic_checkpoint_save_seconds",
            "How long saves took (the node of rank 0).",
            _buckets(state.saving),
            state.saving.total,
        )
        yield CounterMetricFamily(
            "elastic_checkpoint_saved_bytes", "Bytes of all saves.", state.saved_bytes
        )
        yield CounterMetricFamily(
            "elastic_checkpoint_failures", "Saves that failed.", state.saves_failed
        )
        gauges = (
            ("checkpoint_step", "Step of the last checkpoint.", state.checkpoint_step),
            ("checkpoint_size_bytes", "Size of the last checkpoint.", state.checkpoint_bytes),
            ("snapshot_step", "Step of the last snapshot in memory.", state.snapshot_step),
            ("snapshot_size_bytes", "Size of the last snapshot.", state.snapshot_bytes),
        )
        for name, text, value in gauges:
            if value is not None and value >= 0:
                yield GaugeMetricFamily(f"elastic_{name}", text, value)


def _buckets(seconds: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in HISTOGRAM_BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(seconds.counts), strict=True))
