"""The operator: kopf logs in and follows the ElasticJobs. Nothing else here knows kopf.

Only plain event handlers are registered: they leave no annotations and no finalizers on jobs.
What jobs own is followed by ``watch.Watch``, which also sees what was deleted while a watch was
broken for long; kopf does not tell that.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import kopf

from elastic_runtime.controller.api import Access
from elastic_runtime.controller.spec import GROUP, PLURAL, VERSION
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    import asyncio

    from elastic_runtime.controller.world import World
    from elastic_runtime.events import Emit


def login() -> Access:
    """Finds the API server and our credentials: a pod's service account, else a kubeconfig.

    Raises:
        UsageError: there is neither, or it cannot be read.
    """
    info = _login(kopf.OperatorSettings())
    # Without credentials of the client's or a CA of the cluster's the ordinary check is enough.
    tls = info.as_ssl_context() if info.server.startswith("https:") else None
    return Access(info.server, info.as_http_headers(), tls, info.default_namespace or "")


async def follow_jobs(world: World, namespace: str, ready: asyncio.Event, emit: Emit) -> None:
    """Runs kopf, which tells ``world`` of ElasticJobs; ends only when kopf does.

    Args:
        world: what is known.
        namespace: "" for all of them.
        ready: set when kopf has started.
        emit: where kopf's warnings go.
    """
    _hear_warnings(emit)
    where: dict[str, Any] = {"namespaces": [namespace]} if namespace else {"clusterwide": True}
    await kopf.operator(
        registry=_registry(world),
        settings=_settings(),
        standalone=True,
        ready_flag=ready,
        **where,
    )


def _registry(world: World) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo:
        return _login(settings)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def see(event: Any, **_: Any) -> None:
        job = dict(event["object"])
        meta = job["metadata"]
        if event["type"] == "DELETED":
            world.lost((meta["namespace"], meta["name"]), meta["uid"])
        else:
            world.learned(job)

    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # our events are the plan's
    settings.scanning.disabled = True  # asks for no right to read CRDs and namespaces
    settings.queueing.idle_timeout = 1.0  # a task for each job would stay for that long
    settings.queueing.exit_timeout = 0.5
    settings.networking.error_backoffs = (0.5, 1, 2, 5)
    return settings


def _login(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    try:
        inside = kopf.login_with_service_account(settings=settings)
        info = inside or kopf.login_with_kubeconfig(settings=settings)
    except (OSError, ValueError, KeyError, AttributeError, kopf.LoginError) as error:
        raise UsageError(f"the credentials for the cluster cannot be read: {error!r}") from error
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
    return info


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
