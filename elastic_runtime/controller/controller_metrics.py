"""What the controller counts, and the little server that shows it: metrics and probes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _JobsByCondition(Collector):
    """Counted when somebody asks."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "elastic_controller_jobs", "ElasticJobs that have a condition", labels=["condition"]
        )
        for condition, number in sorted(self._count().items()):
            family.add_metric([condition], number)
        yield family


class Metrics:
    """The controller's metrics.

    Args:
        queued: how many jobs wait to be looked at.
        jobs: how many jobs have each condition.
    """

    def __init__(self, queued: Callable[[], int], jobs: Callable[[], Mapping[str, int]]) -> None:
        self._registry = CollectorRegistry()
        name = "elastic_controller_{}".format
        self.reconcile_seconds = Histogram(
            name("reconcile_seconds"),
            "Looking at one job once, requests included",
            registry=self._registry,
        )
        self.errors = Counter(
            name("reconcile_errors"), "Looks at a job that failed", registry=self._registry
        )
        self.refused = Counter(
            name("refused_actions"),
            "Looks at a job in which the API server refused something",
            registry=self._registry,
        )
        self._requests = Counter(
            name("api_requests"), "Requests", ["verb", "code"], registry=self._registry
        )
        self.leads = Gauge(
            name("leads"), "Whether this controller holds the Lease", registry=self._registry
        )
        queue = Gauge(name("queue_length"), "Jobs to be looked at", registry=self._registry)
        queue.set_function(lambda: float(queued()))
        self._registry.register(_JobsByCondition(jobs))

    def requested(self, verb: str, code: int) -> None:
        """Counts a request to the API server; code 0 is one without an answer."""
        self._requests.labels(verb, str(code)).inc()

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)


async def serve(port: int, metrics: Metrics, why_not_ready: Callable[[], str]) -> web.AppRunner:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` until the runner is cleaned up.

    Args:
        port: on all interfaces.
        metrics: what is shown.
        why_not_ready: "" when the controller does its work, or stands by to do it.

    Returns:
        The running server.

    Raises:
        UsageError: the port cannot be had.
    """

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": _TEXT})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # the loop turns, or this would not be answered

    async def readyz(_: web.Request) -> web.Response:
        why = why_not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    # It writes a traceback for each request that is none, and anybody may send such.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    app = web.Application()
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UsageError(
            f"port {port} cannot be had for probes and metrics ({error.strerror}): choose another "
            "with --liveness-port"
        ) from error
    return runner
