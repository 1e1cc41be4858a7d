"""What ``spec.scheduling`` may say."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.spec.field_reader import InvalidSpec
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.controller.spec.scheduling_spec import Scheduling
from tests.unit.controller.jobs import job


def test_without_it_there_is_neither_queue_nor_gang() -> None:
    read = JobSpec.of(job()).scheduling
    assert read == Scheduling()
    assert not read.kueue


@pytest.mark.parametrize(
    ("gang", "kueue"),
    [("", True), ("coscheduling", True), ("native", True), ("volcano", False), ("kai", False)],
)
def test_a_queue_is_kueues_unless_the_scheduler_has_its_own(gang: str, kueue: bool) -> None:
    asked = {"queue": "team", **({"gang": gang} if gang else {})}
    assert JobSpec.of(job(scheduling=asked)).scheduling.kueue is kueue


def test_a_gang_alone_waits_in_no_queue() -> None:
    assert not JobSpec.of(job(scheduling={"gang": "coscheduling"})).scheduling.kueue


@pytest.mark.parametrize(
    ("asked", "field", "why"),
    [
        ({"queue": "Team"}, "spec.scheduling.queue", "'Team' is not the name of an object"),
        ({"queue": "a" * 64}, "spec.scheduling.queue", "is not the name of an object"),
        ({"queue": 7}, "spec.scheduling.queue", "7 is not a text"),
        ({"gang": "all"}, "spec.scheduling.gang", "coscheduling, volcano, kai, native"),
        ({"priorityClass": "a"}, "spec.scheduling.priorityClass", "name one in queue"),
        (
            {"queue": "q", "gang": "kai", "surplusPriorityClass": "a"},
            "spec.scheduling.surplusPriorityClass",
            "waits in no queue of Kueue",
        ),
        ([], "spec.scheduling", "[] is not an object"),
    ],
)
def test_what_is_refused(asked: Any, field: str, why: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        JobSpec.of(job(scheduling=asked))
    assert refused.value.field == field
    assert why in refused.value.why
