"""What the controller counts, and the little server that shows it: metrics and probes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_runtime.errors import UsageError
from elastic_runtime.system.http_server import Answer, HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _JobCounts(Collector):
    """Jobs by what is said of them, counted when metrics are read."""

    def __init__(
        self, name: str, about: str, label: str, count: Callable[[], Mapping[str, int]]
    ) -> None:
        self._name, self._about, self._label, self._count = name, about, label, count

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._about, labels=[self._label])
        for value, number in sorted(self._count().items()):
            family.add_metric([value], number)
        yield family


class ControllerMetrics:
    """The controller's metrics.

    Args:
        queued: how many jobs wait to be looked at.
        conditions: how many jobs have each condition.
        states: how many jobs are in each state; all states, those of no job among them.
    """

    def __init__(
        self,
        queued: Callable[[], int],
        conditions: Callable[[], Mapping[str, int]],
        states: Callable[[], Mapping[str, int]],
    ) -> None:
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
        for collector in (
            _JobCounts(name("jobs"), "ElasticJobs that have a condition", "condition", conditions),
            _JobCounts(name("jobs_by_state"), "ElasticJobs in a state", "state", states),
        ):
            self._registry.register(collector)

    def requested(self, verb: str, code: int) -> None:
        """Counts a request to the API server; code 0 is one without an answer."""
        self._requests.labels(verb, str(code)).inc()

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)


async def serve(
    port: int, metrics: ControllerMetrics, why_not_ready: Callable[[], str]
) -> HttpServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` until the server is closed.

    Args:
        port: on all interfaces.
        metrics: what is shown.
        why_not_ready: "" when the controller does its work, or stands by to do it.

    Returns:
        The running server.

    Raises:
        UsageError: the port cannot be had.
    """

    def answer(path: str) -> Answer:
        match path:
            case "/metrics":
                return Answer(HTTPStatus.OK, metrics.text(), _TEXT)
            case "/healthz":
                return Answer(HTTPStatus.OK, b"ok\n")  # the loop turns, or nothing would be said
            case "/readyz" if why := why_not_ready():
                return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode())
            case "/readyz":
                return Answer(HTTPStatus.OK, b"ok\n")
        return Answer(HTTPStatus.NOT_FOUND, b"there is /metrics, /healthz and /readyz\n")

    try:
        server = HttpServer("::", port, answer)
    except OSError as error:
        raise UsageError(
            f"port {port} cannot be had for probes and metrics ({error.strerror}): choose another "
            "with --liveness-port"
        ) from error
    await server.start()
    return server
