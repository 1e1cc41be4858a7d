"""The controller as a running service: waits for the Lease, then works until it is told to end."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.clock import MonotonicClock
from elastic_runtime.controller import operator
from elastic_runtime.controller.agent_reports import Reports
from elastic_runtime.controller.cluster_state import World
from elastic_runtime.controller.controller_metrics import Metrics, serve
from elastic_runtime.controller.decide.decision import decide
from elastic_runtime.controller.decide.job_spec import GROUP, PLURAL, VERSION
from elastic_runtime.controller.decide.manifests import ETCD_IMAGE
from elastic_runtime.controller.reconcile import Reconciler
from elastic_runtime.controller.views import MANAGED
from elastic_runtime.controller.workqueue import Queue
from elastic_runtime.kubernetes.api_client import BUDGETS, PODS, SERVICES, Api, ApiError
from elastic_runtime.kubernetes.informer import Watch
from elastic_runtime.kubernetes.leader_lease import Lease, LostLease, Terms

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from elastic_runtime.events import Emit

_LOOK_AGAIN = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Settings:
    """How the controller runs.

    Attributes:
        identity: of this one among several controllers.
        home: the namespace of the Lease; "" for the one that the credentials belong to.
        namespace: the only one whose jobs are looked after; "" for all.
        port: of probes and metrics.
        etcd_image: what runs for jobs that name no etcd.
        terms: of the Lease.
    """

    identity: str
    home: str = ""
    namespace: str = ""
    port: int = 8080
    etcd_image: str = ETCD_IMAGE
    terms: Terms = field(default_factory=Terms)


class Controller:
    """One life of the controller.

    Args:
        settings: how it runs.
        emit: where events go.
    """

    def __init__(self, settings: Settings, emit: Emit) -> None:
        self._settings, self._emit = settings, emit
        self._clock = MonotonicClock()
        self._queue = Queue()
        self._world = World(self._queue.put)
        self._metrics = Metrics(self._queue.__len__, self._world.conditions)
        self._stop = asyncio.Event()
        self._not_ready = "the API server was not reached yet"

    async def run(self) -> None:
        """Works until SIGTERM or SIGINT.

        Raises:
            LostLease: another controller leads now.
            UsageError: there are no credentials.
        """
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        server = await serve(self._settings.port, self._metrics, lambda: self._not_ready)
        try:
            async with Api(operator.login, self._metrics.requested) as api:
                work = asyncio.create_task(self._work(api))
                stop = asyncio.create_task(self._stop.wait())
                await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
                await _ended(work)
        finally:
            await server.cleanup()

    async def _work(self, api: Api) -> None:
        await self._installed(api)
        settings = self._settings
        home = settings.home or settings.namespace or api.access.namespace or "default"
        lease = Lease(api, home, settings.identity, self._clock, self._emit, settings.terms)
        await lease.acquire()
        self._metrics.leads.set(1)
        try:
            await self._lead(api, lease)
        except LostLease:
            raise
        except BaseException:
            await lease.release()
            raise

    async def _installed(self, api: Api) -> None:
        """Waits until the custom resource is there."""
        told, path = "", f"/apis/{GROUP}/{VERSION}"
        while True:
            try:
                served = await api.get(path)
                if any(one["name"] == PLURAL for one in served["resources"]):
                    self._not_ready = ""
                    return
                why = f"{path} has no {PLURAL}"
            except ApiError as error:
                why = str(error)
                if error.gone:
                    why = "ElasticJobs are not known here: kubectl apply -f deploy/crd.yaml"
            self._not_ready = why
            if why != told:
                self._emit("controller.waiting", reason=why)
                told = why
            await asyncio.sleep(_LOOK_AGAIN)

    async def _lead(self, api: Api, lease: Lease) -> None:
        """Does all of it, until something ends."""
        self._not_ready = "the objects of the cluster were not listed yet"
        world, queue, namespace = self._world, self._queue, self._settings.namespace
        watches = [
            Watch(api, resource, namespace, MANAGED, follower, self._emit)
            for resource, follower in (
                (PODS, world.pods),
                (SERVICES, world.services),
                (BUDGETS, world.budgets),
            )
        ]
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        tasks.append(asyncio.create_task(lease.hold()))
        try:
            # A job whose pods were not seen yet would be given new ones.
            await _first(self._all_listed(watches), *tasks)
            reconciler = Reconciler(
                api,
                world,
                queue,
                partial(decide, etcd_image=self._settings.etcd_image),
                time.time,
                self._metrics,
                self._emit,
            )
            reports = Reports(world, queue.put, self._clock)
            tasks.append(asyncio.create_task(reconciler.run()))
            tasks.append(asyncio.create_task(reports.run()))
            await _first(self._follow_jobs(), *tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _all_listed(self, watches: list[Watch]) -> None:
        for watch in watches:
            await watch.listed.wait()

    async def _follow_jobs(self) -> None:
        ready = asyncio.Event()
        own = asyncio.create_task(self._when_ready(ready))
        try:
            await operator.follow_jobs(self._world, self._settings.namespace, ready, self._emit)
        finally:
            own.cancel()

    async def _when_ready(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self._not_ready = ""
        self._emit("controller.ready", namespace=self._settings.namespace or "all")


async def _first(work: Coroutine[Any, Any, None], *others: asyncio.Task[None]) -> None:
    """Waits for ``work``, or for the failure of what goes on beside it."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
        for one in (task, *others):
            if one.done():
                await one
    finally:
        await _ended(task)


async def _ended(task: asyncio.Task[None]) -> None:
    """Ends a task; raises what it has failed with."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
