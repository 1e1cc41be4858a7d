"""What is said about jobs of a cluster, from the objects that the API server gives."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.cli.kube import job_report as states
from elastic_runtime.cli.kube.job_report import bounds, event_lines, job_line, job_report, pod_line
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.kubernetes.api_times import parse_time
from tests.unit.cli.kube.job_objects import BORN, a_job, a_pod, an_event, conditions_of

NOW = parse_time("2026-01-02T03:09:05Z")


@pytest.mark.parametrize(
    ("holding", "state"),
    [
        ((), states.UNSEEN),
        (("Created",), states.PENDING),
        (("Created", "Running"), states.RUNNING),
        (("Created", "Running", "Restarting"), states.RESTARTING),
        (("Created", "Suspended"), states.SUSPENDED),
        (("Created", "Succeeded"), states.SUCCEEDED),
        (("Created", "Failed"), states.FAILED),
    ],
)
def test_the_state_is_what_the_conditions_say(holding: tuple[str, ...], state: str) -> None:
    line = job_line(a_job(conditions=conditions_of(*holding) if holding else []))
    assert line.state == state
    # What is pending says why it does not run.
    why = "Running" if state == states.PENDING else holding[-1] if holding else ""
    assert line.why == (f"why {why}" if why else "")
    assert line.over is (state in (states.SUCCEEDED, states.FAILED))


def test_a_job_that_starts_again_and_waits_says_what_it_waits_for() -> None:
    trains = a_job(conditions=conditions_of("Created", "Running", "Restarting"))
    assert job_line(trains).why == "why Restarting"
    waits = a_job(conditions=conditions_of("Created", "Restarting"))
    assert (job_line(waits).state, job_line(waits).why) == (states.RESTARTING, "why Running")


def test_a_job_that_is_being_deleted_says_so_first() -> None:
    job = a_job(conditions=conditions_of("Created", "Running"))
    job["metadata"]["deletionTimestamp"] = BORN
    assert job_line(job).state == states.DELETING


def test_a_line_has_the_printer_columns() -> None:
    line = job_line(
        a_job(
            replicaStatuses={"Worker": {"ready": 2}},
            worldSize=4,
            round=7,
            step=120,
            restartCount=3,
            observedGeneration=2,
        )
    )
    assert (line.desired, line.ready, line.world, line.round, line.step) == (3, 2, 4, 7, 120)
    assert (line.restarts, line.behind) == (3, False)


def test_nothing_is_made_up_for_a_job_without_a_status() -> None:
    job = a_job()
    del job["status"]
    line = job_line(job)
    assert (line.world, line.round, line.step, line.ready, line.behind) == (
        *(None, None, None),
        0,
        True,
    )


def test_a_job_whose_spec_cannot_be_read_says_so_and_is_not_unseen() -> None:
    refused = {"status": "False", "reason": "InvalidSpec", "message": "spec.minReplicas: no"}
    line = job_line(
        a_job(conditions=[{"type": "Created", **refused}, {"type": "Running", **refused}])
    )
    assert (line.state, line.why) == (states.PENDING, "spec.minReplicas: no")


def test_bounds_that_were_left_out_are_the_size() -> None:
    spec = a_job()["spec"]
    assert bounds(spec) == (1, 4)
    del spec["minReplicas"], spec["maxReplicas"]
    assert bounds(spec) == (3, 3)
    del spec["replicaSpecs"]["Worker"]["replicas"]
    assert bounds(spec) == (1, 1)
    for given in ({}, {"minReplicas": 2}, {"minReplicas": 2, "maxReplicas": 4}):
        job = a_job()
        job["spec"] = {**spec, **given}
        read = JobSpec.of(job)  # the controller understands the same
        assert (*bounds(job["spec"]), job_line(job).desired) == (
            *(read.minimum, read.maximum),
            read.replicas,
        )


@pytest.mark.parametrize(
    ("pod", "state", "detail"),
    [
        (a_pod(state={"running": {}}), "running", ""),
        (a_pod(state={"terminated": {"exitCode": 0}}, phase="Succeeded"), "succeeded", ""),
        (
            a_pod(state={"terminated": {"exitCode": 1, "reason": "Error"}}, phase="Failed"),
            "exit code 1",
            "",
        ),
        (
            a_pod(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, phase="Failed"),
            "exit code 137",
            "OOMKilled",
        ),
        (a_pod(phase="Failed", reason="Evicted", message="no disk"), "Evicted", "no disk"),
        (
            a_pod(
                state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}},
                phase="Pending",
            ),
            "ImagePullBackOff",
            "not found",
        ),
        (
            a_pod(
                phase="Pending",
                conditions=[{"type": "PodScheduled", "status": "False", "message": "no GPU"}],
            ),
            "not placed",
            "no GPU",
        ),
        (a_pod(phase="Pending"), "pending", ""),
    ],
)
def test_a_pod_says_why_it_does_not_run(pod: Any, state: str, detail: str) -> None:
    line = pod_line(pod)
    assert (line.state, line.detail) == (state, detail)


def test_a_pod_that_is_being_deleted_leaves() -> None:
    pod = a_pod(state={"running": {}})
    pod["metadata"]["deletionTimestamp"] = BORN
    assert pod_line(pod).state == "leaving"


def test_pods_are_in_the_order_of_their_indices_and_the_etcd_comes_last() -> None:
    report = job_report(a_job(), [a_pod(None), a_pod(10), a_pod(2)], [])
    assert [pod.name for pod in report.pods] == ["one-worker-2", "one-worker-10", "one-etcd"]
    assert [(pod.role, pod.index, pod.attempt) for pod in report.pods[1:]] == [
        ("worker", 10, 1),
        ("etcd", -1, 0),
    ]


def test_only_events_of_this_job_and_its_pods_are_taken() -> None:
    ours = [
        an_event("ElasticJob", "one", "2026-01-02T03:05:00Z", uid="u1"),
        an_event("Pod", "one-worker-0", "2026-01-02T03:04:30Z"),
        an_event("Pod", "one-etcd", "2026-01-02T03:04:31Z"),
        an_event("Pod", "one-worker-1-mwzc2aoc", "2026-01-02T03:04:32Z"),  # in a queue
    ]
    others = [
        an_event("ElasticJob", "one", uid="u0"),  # an older job of that name
        an_event("Pod", "one-worker-0", "2026-01-02T03:04:00Z"),  # and its pod
        an_event("Pod", "one-worker-two"),
        an_event("Pod", "one-worker-0-etcd"),  # of a job that is called so
        an_event("Pod", "one-two-worker-0"),
        an_event("ElasticJob", "two"),
    ]
    lines = event_lines(a_job(), ours + others)
    found = [line.object for line in lines]
    assert found == ["one-worker-0", "one-etcd", "one-worker-1-mwzc2aoc", "one"]


@pytest.mark.parametrize(
    "times",
    [
        {"lastTimestamp": BORN, "firstTimestamp": "2025-01-01T00:00:00Z"},
        {"lastTimestamp": None, "eventTime": "2026-01-02T03:04:05.000000Z"},
        {"lastTimestamp": None, "eventTime": "2025-01-01T00:00:00.0Z", "series": {
            "count": 4, "lastObservedTime": "2026-01-02T03:04:05.000000Z"}},
    ],
)  # fmt: skip
def test_both_kinds_of_events_have_a_time(times: dict[str, Any]) -> None:
    (line,) = event_lines(a_job(), [an_event("ElasticJob", "one", uid="u1", **times)])
    assert line.at == parse_time(BORN)
    assert line.count == (4 if "series" in times else 1)
