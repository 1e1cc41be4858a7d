"""What ``spec.scheduling`` may say."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.cli.kube.build_job import checked_job
from elastic_runtime.controller.spec.field_reader import InvalidSpec
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.controller.spec.scheduling_spec import Scheduling
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import begun


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
    ("label", "asked", "is_told"),
    [
        ("team", None, True),
        ("team", {"queue": "other"}, True),
        ("team", {"queue": "team"}, False),
        ("", None, False),
    ],
)
def test_a_queue_in_a_label_of_the_job_has_no_effect_and_that_is_told(
    label: str, asked: Any, is_told: bool
) -> None:
    made = job(scheduling=asked)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": label} if label else {}
    cluster = begun(made)
    assert cluster.reasons("Warning") == (["QueueIgnored"] if is_told else [])
    if is_told:
        with pytest.raises(InvalidSpec, match=r"say it in spec\.scheduling\.queue"):
            checked_job(made)
    else:
        checked_job(made)


@pytest.mark.parametrize(
    ("asked", "field", "why"),
    [
        ({"queue": "Team"}, "spec.scheduling.queue", "'Team' is not the name of an object"),
        ({"queue": "a" * 64}, "spec.scheduling.queue", "is not the name of an object"),
        ({"queue": ""}, "spec.scheduling.queue", "it is empty"),
        ({"queue": 7}, "spec.scheduling.queue", "7 is not a text"),
        ({"gang": "all"}, "spec.scheduling.gang", "coscheduling, volcano, kai, native"),
        ({"priorityClass": "a"}, "spec.scheduling.priorityClass", "name one in queue"),
        (
            {"queue": "q", "gang": "kai", "surplusPriorityClass": "a"},
            "spec.scheduling.surplusPriorityClass",
            "kai knows none: use spec.priorityClassName",
        ),
        ([], "spec.scheduling", "[] is not an object"),
    ],
)
def test_what_is_refused(asked: Any, field: str, why: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        JobSpec.of(job(scheduling=asked))
    assert refused.value.field == field
    assert why in refused.value.why
