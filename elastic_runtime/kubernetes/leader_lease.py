"""One controller leads: the one that holds the Lease.

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
from elastic_runtime.kubernetes.api_client import LEASES, ApiError

if TYPE_CHECKING:
    from elastic_runtime.clock import Clock
    from elastic_runtime.events import Emit
    from elastic_runtime.kubernetes.api_client import Api, Json

NAME = "elastic-controller"
_SECONDS = 15.0


class LostLease(ElasticError):
    """This controller leads no more; it ends, and whoever starts it again lets it wait."""


@dataclass(frozen=True)
class Terms:
    """How long a Lease holds.

    Attributes:
        seconds: without a renewal, until another may take it.
    """

    seconds: float = _SECONDS

    @property
    def pause(self) -> float:
        """Between two renewals, or two looks of one that waits."""
        return self.seconds / 3

    @property
    def retry(self) -> float:
        """After a renewal that failed: one failure must not be the end."""
        return self.seconds / 15

    @property
    def attempt(self) -> float:
        """Until a renewal without an answer is given up and tried again."""
        return self.seconds / 5

    @property
    def patience(self) -> float:
        """Without a successful renewal, until the leader gives up."""
        return self.seconds * 2 / 3


class Lease:
    """The Lease, as one controller sees it.

    Args:
        api: the client.
        namespace: where the Lease is.
        identity: of this controller; no other has the same.
        clock: the time.
        emit: where it says who leads.
        terms: how long it holds.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        clock: Clock,
        emit: Emit,
        terms: Terms | None = None,
    ) -> None:
        self._api, self._namespace, self._identity = api, namespace, identity
        self._clock, self._emit, self._terms = clock, emit, terms or Terms()
        self._held: Json = {}
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Returns when this controller leads."""
        told = ""
        while True:
            try:
                holder = await self._try()
            except ApiError as error:
                holder = "?"
                self._emit("lease.failed", reason=str(error))
            if holder == self._identity:
                self._emit("lease.held", identity=self._identity)
                return
            if holder != told:
                self._emit("lease.waiting", holder=holder)
                told = holder
            await asyncio.sleep(self._terms.pause)

    async def hold(self) -> None:
        """Renews for as long as that works.

        Raises:
            LostLease: it did not work for too long, or another has taken the Lease.
        """
        terms, renewed, pause = self._terms, self._clock.now(), self._terms.pause
        why = "no time was left"
        while True:
            await asyncio.sleep(pause)
            left = renewed + terms.patience - self._clock.now()
            if left <= 0:
                raise LostLease(f"the Lease could not be renewed in time ({why})")
            try:
                async with asyncio.timeout(min(left, terms.attempt)):
                    await self._renew()
                renewed, pause = self._clock.now(), terms.pause
                continue
            except ApiError as error:
                if error.conflict or error.gone:
                    raise LostLease(f"another controller leads now ({error})") from None
                why = str(error)
            except TimeoutError:
                why = "no answer in time"
            self._emit("lease.failed", reason=why)
            pause = terms.retry

    async def release(self) -> None:
        """Lets another lead at once."""
        if not self._held:
            return
        spec = {**self._held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            lease = {**self._held, "spec": spec}
            await self._api.replace(LEASES, self._namespace, NAME, lease)
        except ApiError as error:
            self._emit("lease.failed", reason=str(error))
        self._held = {}

    async def _try(self) -> str:
        """Takes the Lease if it is free; gives who holds it now."""
        try:
            found = await self._api.get(LEASES.path(self._namespace, NAME))
        except ApiError as error:
            if not error.gone:
                raise
            found = {}
        spec: dict[str, Any] = found.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if found and holder not in ("", self._identity) and not self._expired(found):
            return holder
        try:
            self._held = await self._write(found)
        except ApiError as error:
            if error.conflict:  # somebody was faster
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
            found = await self._api.get(LEASES.path(self._namespace, NAME))
            if found["spec"].get("holderIdentity") == self._identity:
                self._held = found
                return True
        return False

    def _expired(self, lease: Json) -> bool:
        version, now = str(lease["metadata"]["resourceVersion"]), self._clock.now()
        if self._seen[0] != version:
            self._seen = (version, now)
        seconds = float(lease["spec"].get("leaseDurationSeconds") or self._terms.seconds)
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
            "leaseDurationSeconds": max(1, round(self._terms.seconds)),
            "renewTime": now,
        }
        if before:
            lease = {**before, "spec": spec}
            return await self._api.replace(LEASES, self._namespace, NAME, lease)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "spec": spec,
        }
        return await self._api.create(LEASES, self._namespace, lease)
