"""The controller as a running service: waits for the Lease, then works until it is asked to end."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.clock import MonotonicClock
from elastic_runtime.controller.agent_reports import AgentReports
from elastic_runtime.controller.cluster_state import ClusterState
from elastic_runtime.controller.controller_metrics import ControllerMetrics, serve
from elastic_runtime.controller.decide.decision import decide
from elastic_runtime.controller.decide.etcd_manifests import ETCD_IMAGE
from elastic_runtime.controller.event_recorder import COMPONENT
from elastic_runtime.controller.reconcile import Reconciler
from elastic_runtime.controller.spec.job_spec import API_GROUP, JOBS, PLURAL, VERSION
from elastic_runtime.controller.views import MANAGED
from elastic_runtime.controller.workqueue import WorkQueue
from elastic_runtime.events.controller_events import ControllerReady, ControllerWaiting
from elastic_runtime.kubernetes.api_client import ApiClient
from elastic_runtime.kubernetes.api_errors import ApiError
from elastic_runtime.kubernetes.api_resources import DISRUPTION_BUDGETS, PODS, SERVICES
from elastic_runtime.kubernetes.cluster_access import login
from elastic_runtime.kubernetes.informer import Informer
from elastic_runtime.kubernetes.leader_lease import LeaderLease, LeaseTimings, LostLease

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from elastic_runtime.events import Emit

_LOOK_AGAIN = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class ControllerSettings:
    """How the controller runs.

    Attributes:
        identity: of this one among several controllers.
        home: the namespace of the Lease; "" for the one that the credentials belong to.
        namespace: the only one whose jobs are looked after; "" for all.
        port: of probes and metrics.
        etcd_image: what runs for jobs that name no etcd.
        topology_labels: of nodes, nearest last, that pods are told; empty: none.
        timings: of the Lease.
    """

    identity: str
    home: str = ""
    namespace: str = ""
    port: int = 8080
    etcd_image: str = ETCD_IMAGE
    topology_labels: tuple[str, ...] = ()
    timings: LeaseTimings = field(default_factory=LeaseTimings)


class Controller:
    """One run of the controller.

    Args:
        settings: how it runs.
        emit: where events go.
    """

    def __init__(self, settings: ControllerSettings, emit: Emit) -> None:
        self._settings, self._emit = settings, emit
        self._clock = MonotonicClock()
        self._queue = WorkQueue()
        self._state = ClusterState(self._queue.add)
        self._metrics = ControllerMetrics(
            self._queue.__len__, self._state.conditions, self._state.states
        )
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
            async with ApiClient(login, COMPONENT, self._metrics.requested) as client:
                work = asyncio.create_task(self._work(client))
                stop = asyncio.create_task(self._stop.wait())
                await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
                await _ended(work)
        finally:
            await server.close()

    async def _work(self, client: ApiClient) -> None:
        await self._installed(client)
        settings = self._settings
        home = settings.home or settings.namespace or client.credentials.namespace
        lease = LeaderLease(
            client,
            home,
            COMPONENT,
            settings.identity,
            self._clock,
            self._emit,
            settings.timings,
        )
        await lease.acquire()
        self._metrics.leads.set(1)
        try:
            await self._lead(client, lease)
        except LostLease:
            raise
        except BaseException:
            await lease.release()
            raise

    async def _installed(self, client: ApiClient) -> None:
        """Waits until the custom resource is there."""
        reported, path = "", f"/apis/{API_GROUP}/{VERSION}"
        while True:
            try:
                served = await client.get(path)
                if any(one["name"] == PLURAL for one in served["resources"]):
                    self._not_ready = ""
                    return
                why = f"{path} has no {PLURAL}"
            except ApiError as error:
                why = str(error)
                if error.not_found:
                    why = "ElasticJobs are not known here: kubectl apply -f deploy/crd.yaml"
            self._not_ready = why
            if why != reported:
                self._emit(ControllerWaiting(why))
                reported = why
            await asyncio.sleep(_LOOK_AGAIN)

    async def _lead(self, client: ApiClient, lease: LeaderLease) -> None:
        """Does all of it, until something ends."""
        self._not_ready = "the objects of the cluster were not listed yet"
        state = self._state
        informers = [
            Informer(client, resource, self._settings.namespace, selector, cache, self._emit)
            for resource, selector, cache in (
                (JOBS, "", state),
                (PODS, MANAGED, state.pods),
                (SERVICES, MANAGED, state.services),
                (DISRUPTION_BUDGETS, MANAGED, state.budgets),
            )
        ]
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        tasks.append(asyncio.create_task(lease.hold()))
        try:
            # A job whose pods were not seen yet would be given new ones.
            await _first(_all_listed(informers), *tasks)
            await _first(self._look_after_jobs(client), *tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_after_jobs(self, client: ApiClient) -> None:
        """Brings jobs to what they ask for; never ends by itself."""
        self._not_ready = ""
        self._emit(ControllerReady(self._settings.namespace or "all"))
        reconciler = Reconciler(
            client,
            self._state,
            self._queue,
            partial(
                decide,
                etcd_image=self._settings.etcd_image,
                topology_labels=self._settings.topology_labels,
            ),
            time.time,
            self._metrics,
            self._emit,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(reconciler.run())
            group.create_task(AgentReports(self._state, self._queue.add, self._clock).run())


async def _all_listed(informers: list[Informer]) -> None:
    for informer in informers:
        await informer.listed.wait()


async def _first(work: Coroutine[Any, Any, None], *others: asyncio.Task[None]) -> None:
    """Waits for ``work``, or for the failure of what runs beside it."""
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
