"""One of several programs leads: the one that holds the Lease.

No clocks of two hosts are compared. Who waits takes a Lease over when it has seen it unchanged
for as long as the Lease says; who leads stops well before that, when it cannot renew it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import ElasticError
from elastic_runtime.events.controller_events import LeaseFailed, LeaseHeld, LeaseWaiting
from elastic_runtime.kubernetes.api_errors import ApiError
from elastic_runtime.kubernetes.api_resources import LEASES
from elastic_runtime.limits import CONTROLLER_LEASE

if TYPE_CHECKING:
    from elastic_runtime.clock import Clock
    from elastic_runtime.events import Emit
    from elastic_runtime.kubernetes.api_client import ApiClient, Json


class LostLease(ElasticError):
    """This program no longer leads; it ends, and waits for the Lease when it is started again."""


@dataclass(frozen=True)
class LeaseTimings:
    """How long a Lease holds.

    Attributes:
        duration: seconds without a renewal, until another may take it.
    """

    duration: float = CONTROLLER_LEASE

    @property
    def renew_period(self) -> float:
        """Between two renewals, or two looks of one that waits."""
        return self.duration / 3

    @property
    def retry_period(self) -> float:
        """After a renewal that failed: one failure must not be the end."""
        return self.duration / 15

    @property
    def request_timeout(self) -> float:
        """Until a renewal without an answer is given up and tried again."""
        return self.duration / 5

    @property
    def renew_deadline(self) -> float:
        """Without a successful renewal, until the leader gives up."""
        return self.duration * 2 / 3


class LeaderLease:
    """The Lease, as one candidate sees it.

    Args:
        client: asks the API server.
        namespace: where the Lease is.
        name: of the Lease.
        identity: of this candidate; no other has the same.
        clock: the time.
        emit: where it says who leads.
        timings: how long it holds.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        emit: Emit,
        timings: LeaseTimings | None = None,
    ) -> None:
        self._client, self._namespace = client, namespace
        self._name, self._identity = name, identity
        self._clock, self._emit, self._timings = clock, emit, timings or LeaseTimings()
        self._held: Json = {}
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Returns when this candidate leads."""
        reported = ""
        while True:
            try:
                holder = await self._try()
            except ApiError as error:
                holder = "?"
                self._emit(LeaseFailed(str(error)))
            if holder == self._identity:
                self._emit(LeaseHeld(self._identity))
                return
            if holder != reported:
                self._emit(LeaseWaiting(holder))
                reported = holder
            await asyncio.sleep(self._timings.renew_period)

    async def hold(self) -> None:
        """Renews for as long as that works.

        Raises:
            LostLease: it did not work for too long, or another has taken the Lease.
        """
        timings, renewed, pause = self._timings, self._clock.now(), self._timings.renew_period
        why = "no time was left"
        while True:
            await asyncio.sleep(pause)
            left = renewed + timings.renew_deadline - self._clock.now()
            if left <= 0:
                raise LostLease(f"the Lease could not be renewed in time ({why})")
            try:
                async with asyncio.timeout(min(left, timings.request_timeout)):
                    await self._renew()
                renewed, pause = self._clock.now(), timings.renew_period
                continue
            except ApiError as error:
                if error.conflict or error.not_found:
                    raise LostLease(f"another one leads now ({error})") from None
                why = str(error)
            except TimeoutError:
                why = "no answer in time"
            self._emit(LeaseFailed(why))
            pause = timings.retry_period

    async def release(self) -> None:
        """Lets another lead at once."""
        if not self._held:
            return
        spec = {**self._held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            lease = {**self._held, "spec": spec}
            await self._client.replace(LEASES, self._namespace, self._name, lease)
        except ApiError as error:
            self._emit(LeaseFailed(str(error)))
        self._held = {}

    async def _try(self) -> str:
        """Takes the Lease if it is free; gives who holds it now."""
        try:
            found = await self._client.get(LEASES.path(self._namespace, self._name))
        except ApiError as error:
            if not error.not_found:
                raise
            found = {}
        spec: dict[str, Any] = found.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if found and holder not in ("", self._identity) and not self._expired(found):
            return holder
        try:
            self._held = await self._write(found)
        except ApiError as error:
            if error.conflict:  # another one was faster
                return "?"
            raise
        return self._identity

    async def _renew(self) -> None:
        try:
            self._held = await self._write(self._held)
        except ApiError as error:
            if not (error.conflict and await self._still_ours()):
                raise
            self._held = await self._write(self._held)

    async def _still_ours(self) -> bool:
        """After a conflict: a renewal of ours may have counted though its answer never came."""
        with suppress(ApiError):
            found = await self._client.get(LEASES.path(self._namespace, self._name))
            if found["spec"].get("holderIdentity") == self._identity:
                self._held = found
                return True
        return False

    def _expired(self, lease: Json) -> bool:
        version, now = str(lease["metadata"]["resourceVersion"]), self._clock.now()
        if self._seen[0] != version:
            self._seen = (version, now)
        seconds = float(lease["spec"].get("leaseDurationSeconds") or self._timings.duration)
        return now - self._seen[1] > seconds

    async def _write(self, before: Json) -> Json:
        """Writes that we hold it, on top of what was read: a conflict if that has changed."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(before.get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(before)
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timings.duration)),
            "renewTime": now,
        }
        if before:
            lease = {**before, "spec": spec}
            return await self._client.replace(LEASES, self._namespace, self._name, lease)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        return await self._client.create(LEASES, self._namespace, lease)
