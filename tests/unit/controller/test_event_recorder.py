"""Events on a job, as an API server takes them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from elastic_runtime.controller.decide.job_types import JobEvent
from elastic_runtime.controller.event_recorder import record_event

JOB = {
    "apiVersion": "elastic.pytorch.org/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "x" * 253, "namespace": "team", "uid": "u1", "resourceVersion": "7"},
}


class _Server:
    def __init__(self) -> None:
        self.created: list[Any] = []

    async def create(self, resource: Any, namespace: str, item: Any) -> None:
        self.created.append((resource.plural, namespace, item))


def test_an_event_is_about_its_job_and_fits() -> None:
    server = _Server()
    event = JobEvent("Warning", "QuotaExceeded", "m" * 5000)
    for _ in range(2):
        asyncio.run(record_event(cast("Any", server), JOB, event))
    (plural, namespace, first), (_, _, second) = server.created
    assert (plural, namespace) == ("events", "team")
    assert (first["type"], first["reason"]) == ("Warning", "QuotaExceeded")
    about = first["involvedObject"]
    assert (about["name"], about["uid"], about["kind"]) == ("x" * 253, "u1", "ElasticJob")
    assert len(first["message"]) == 1024, "a longer one is refused"
    names = [item["metadata"]["name"] for item in (first, second)]
    assert names[0] < names[1], "lists are in the order of names"
    assert all(len(name) <= 253 for name in names)
