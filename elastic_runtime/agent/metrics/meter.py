"""Makes metrics and probes of the events of an agent: for its last report, and with
``--metrics-port`` for HTTP clients at any time."""

from __future__ import annotations

import json
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from elastic_runtime.agent.metrics.metrics_fold import Measured, WorkerProgress, fold
from elastic_runtime.events.node_events import MetricsOff
from elastic_runtime.topology import topology_text

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events import Emit
    from elastic_runtime.events.event import Event
    from elastic_runtime.system.http_server import Answer, HttpServerThread

_PATHS = ("/metrics", "/status", "/healthz", "/readyz")


class Meter:
    """Measures what the events of an agent say, and serves it if there is a ``--metrics-port``.

    A port that is not available is a warning: a job does not end because its metrics are missing.
    """

    def __init__(self, config: JobConfig, emit: Emit) -> None:
        """Begins to measure.

        Args:
            config: the settings.
            emit: where the events go on to.
        """
        self._config = config
        self._emit = emit
        self._lock = threading.Lock()
        self._state = Measured(time.monotonic())
        self._server: HttpServerThread | None = None

    def __enter__(self) -> Meter:
        if self._config.metrics_port:
            self._serve()
        return self

    def _serve(self) -> None:
        from elastic_runtime.system.http_server import HttpServerThread

        host, port = self._config.metrics_host, self._config.metrics_port
        try:
            self._server = HttpServerThread(host, port, self.answer)
        except OSError as error:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            why = error.strerror or str(error)
            self._emit(MetricsOff(where, why.partition(" (")[0]))

    def __exit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()

    def emit(self, event: Event, /) -> None:
        """Measures an event and passes it on: an ``Emit``."""
        self.watch(event)
        self._emit(event)

    def watch(self, event: Event | WorkerProgress) -> None:
        """Measures an event that is nothing for a log."""
        now = time.monotonic()
        with self._lock:
            self._state = fold(self._state, event, now)

    def summary(self) -> dict[str, Any]:
        """What the job has cost, for the last word."""
        return self._state.summary(time.monotonic())

    def report(self) -> dict[str, Any]:
        """What ``/status`` answers."""
        names = self._config.run_id, self._config.node_name
        where = topology_text(self._config.node_topology)
        place = {"topology": where} if where else {}
        return self._state.status(*names, time.monotonic()) | place

    def answer(self, path: str) -> Answer:
        """What the server says to a request for ``path``."""
        from elastic_runtime.system.http_server import Answer

        state, now = self._state, time.monotonic()
        names = self._config.run_id, self._config.node_name
        match path:
            case "/metrics":
                from elastic_runtime.agent.metrics.prometheus_text import CONTENT_TYPE, render

                return Answer(HTTPStatus.OK, render(state, *names, now), CONTENT_TYPE)
            case "/status":
                body = json.dumps(self.report()).encode() + b"\n"
                return Answer(HTTPStatus.OK, body, "application/json")
            case "/healthz":
                idle = state.hangs(now)
                why = f"the agent's main loop has not run for {idle:.0f} s" if idle else ""
                return _probe(why, "the agent is alive")
            case "/readyz":
                why = "" if state.ready else "this node is in no round"
                return _probe(why, f"in round {state.round}")
        return Answer(HTTPStatus.NOT_FOUND, f"there is {', '.join(_PATHS)}\n".encode())


def _probe(trouble: str, well: str) -> Answer:
    from elastic_runtime.system.http_server import Answer

    status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
    return Answer(status, f"{trouble or well}\n".encode())
