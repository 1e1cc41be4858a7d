"""The operator: kopf logs in and follows the ElasticJobs. Nothing else here knows kopf.

Only plain event handlers are registered: they leave no annotations and no finalizers on jobs.
What jobs own is followed by ``watch.Watch``, which also sees what was deleted while a watch was
broken for long; kopf does not tell that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import kopf

from elastic_runtime.controller.decide.job_spec import GROUP, PLURAL, VERSION
from elastic_runtime.errors import UsageError
from elastic_runtime.kubernetes.api_client import Access

if TYPE_CHECKING:
    from elastic_runtime.controller.cluster_state import World
    from elastic_runtime.events import Emit

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


def login() -> Access:
    """Finds the API server and our credentials: a pod's service account, else a kubeconfig.

    Raises:
        UsageError: there is neither, or it cannot be read.
    """
    info = _login(kopf.OperatorSettings())
    # Without credentials of the client's or a CA of the cluster's the ordinary check is enough.
    try:
        tls = info.as_ssl_context() if info.server.startswith("https:") else None
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None
    return Access(info.server, info.as_http_headers(), tls, info.default_namespace or "")


async def follow_jobs(world: World, namespace: str, ready: asyncio.Event, emit: Emit) -> None:
    """Lets kopf tell ``world`` of ElasticJobs; never ends by itself.

    Kopf ends when the API server refuses it something, and when it ends it cancels whatever else
    goes on in its loop. So it has a thread and a loop of its own, and is started again.

    Args:
        world: what is known.
        namespace: "" for all of them.
        ready: set when kopf has started.
        emit: where kopf's warnings go.
    """
    _hear_warnings(emit)
    pause = _FIRST_PAUSE
    while True:
        begun = time.monotonic()
        try:
            await _in_thread(world, namespace, ready)
            why = "it ended"
        except Exception as error:
            why = repr(error)
        if time.monotonic() - begun > _LONGEST_PAUSE:
            pause = _FIRST_PAUSE
        emit("controller.kopf", reason=f"{why}; starting it again", delay=pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _in_thread(world: World, namespace: str, ready: asyncio.Event) -> None:
    """Runs kopf once, in a thread; ends it when cancelled.

    Raises:
        Exception: whatever ended kopf.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()
    ended: asyncio.Future[None] = loop.create_future()
    started: Future[None] = Future()
    started.add_done_callback(lambda _: loop.call_soon_threadsafe(ready.set))

    def tell(error: Exception | None) -> None:
        if error and not ended.done():
            ended.set_exception(error)
        elif not ended.done():
            ended.set_result(None)

    def run() -> None:
        error: Exception | None = None
        try:
            asyncio.run(_kopf(world, namespace, loop, started, stop))
        except Exception as found:
            error = found
        with suppress(RuntimeError):  # everything may have ended by then
            loop.call_soon_threadsafe(tell, error)

    thread = threading.Thread(target=run, name="kopf", daemon=True)
    thread.start()
    try:
        await asyncio.shield(ended)
    finally:
        stop.set()


async def _kopf(
    world: World,
    namespace: str,
    loop: asyncio.AbstractEventLoop,
    ready: Future[None],
    stop: threading.Event,
) -> None:
    where: dict[str, Any] = {"namespaces": [namespace]} if namespace else {"clusterwide": True}
    try:
        await kopf.operator(
            registry=_registry(world, loop),
            settings=_settings(),
            standalone=True,
            ready_flag=ready,
            stop_flag=stop,
            **where,
        )
    finally:
        stop.set()  # a thread of kopf's waits for it


def _registry(world: World, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo:
        return _login(settings)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def see(event: Any, **_: Any) -> None:
        job = dict(event["object"])
        meta = job["metadata"]
        if event["type"] == "DELETED":
            key = (meta["namespace"], meta["name"])
            loop.call_soon_threadsafe(world.lost, key, meta["uid"])
        else:
            loop.call_soon_threadsafe(world.learned, job)

    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # our events are the plan's
    settings.scanning.disabled = True  # asks for no right to read CRDs and namespaces
    settings.watching.chunk_size = 100
    settings.queueing.idle_timeout = 1.0  # a task for each job would stay for that long
    settings.queueing.exit_timeout = 0.5
    settings.networking.error_backoffs = (0.5, 1, 2, 5)
    return settings


def _login(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    try:
        inside = kopf.login_with_service_account(settings=settings)
        info = inside or kopf.login_with_kubeconfig(settings=settings)
    except Exception as error:  # the shape of a kubeconfig is taken for granted
        raise _unreadable(error) from None
    if info is None:
        raise UsageError(
            "no cluster to work for: neither a service account (outside of a pod) nor a "
            "kubeconfig was found; set KUBECONFIG"
        )
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
    )
    if inside and host:  # an address needs no DNS
        shown = f"[{host}]" if ":" in host else host
        info = replace(info, server=f"https://{shown}:{port}")
    if not re.match("https?://[^/]", str(info.server)):
        raise UsageError(
            f"the kubeconfig's cluster has the server {info.server!r}: that is no URL such as "
            "https://host:6443"
        )
    return info


def _unreadable(error: Exception) -> UsageError:
    # An error of YAML quotes the file, and that holds secrets.
    mark = getattr(error, "problem_mark", None)
    why = f"line {mark.line + 1} is no YAML" if mark else repr(error)
    return UsageError(f"the credentials for the cluster cannot be read: {why}")


class _Warnings(logging.Handler):
    """Passes kopf's log on."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.WARNING)
        self._told = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._told("controller.kopf", level=record.levelname.lower(), reason=record.getMessage())


def _hear_warnings(emit: Emit) -> None:
    logger = logging.getLogger("kopf")
    logger.handlers[:] = [_Warnings(emit)]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    # It misses signals in a thread, which is as it should be.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
