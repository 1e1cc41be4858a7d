"""Events on an ElasticJob, as ``kubectl describe`` shows them."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from elastic_runtime.kubernetes.api_resources import EVENTS
from elastic_runtime.kubernetes.api_times import format_time

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import JobEvent
    from elastic_runtime.kubernetes.api_client import ApiClient, Json

COMPONENT = "elastic-controller"
_LONGEST_MESSAGE = 1024  # a longer one is refused


async def record_event(client: ApiClient, job: Json, event: JobEvent) -> None:
    """Tells an event.

    Raises:
        ApiError: the API server did not take it.
    """
    meta = job["metadata"]
    now = format_time(time.time())
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            # Lists are in the order of names, and times are whole seconds.
            "name": f"{meta['name'][:200]}.{time.time_ns():x}{uuid.uuid4().hex[:4]}",
            "namespace": meta["namespace"],
        },
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await client.create(EVENTS, meta["namespace"], body)
