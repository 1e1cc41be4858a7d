"""What is said about jobs of a cluster: from the objects of the API server to the screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.kube import job_report as states
from elastic_runtime.cli.kube import job_screen as screen
from elastic_runtime.cli.kube.job_client import NotAllowed
from elastic_runtime.cli.kube.job_report import bounds, event_lines, job_line, job_report, pod_line
from elastic_runtime.cli.kube.job_watch import poll
from elastic_runtime.controller.spec.job_spec import JobSpec
from elastic_runtime.errors import ClusterUnreachable
from elastic_runtime.kubernetes.api_times import parse_time
from tests.unit.cli.kube.job_objects import BORN, a_job, a_pod, an_event, conditions_of
from tests.unit.cli.stand_ins import on_screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    seen = {"worldSize": 4, "round": 7, "step": 120, "restartCount": 3, "observedGeneration": 2}
    line = job_line(a_job(replicaStatuses={"Worker": {"ready": 2}}, **seen))
    assert (line.desired, line.ready, line.world, line.round, line.step) == (3, 2, 4, 7, 120)
    assert (line.restarts, line.behind) == (3, False)


def test_a_job_whose_spec_cannot_be_read_says_so_and_is_not_unseen() -> None:
    refused = {"status": "False", "reason": "InvalidSpec", "message": "spec.minReplicas: no"}
    line = job_line(a_job(conditions=[{"type": t, **refused} for t in ("Created", "Running")]))
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


def _ended(code: int, reason: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


_NO_IMAGE = {"reason": "ImagePullBackOff", "message": "not found"}
_NO_PLACE = {"type": "PodScheduled", "status": "False", "message": "no GPU"}


@pytest.mark.parametrize(
    ("pod", "state", "detail"),
    [
        (a_pod(state={"running": {}}), "running", ""),
        (a_pod(state={"terminated": {"exitCode": 0}}, phase="Succeeded"), "succeeded", ""),
        (a_pod(state=_ended(1, "Error"), phase="Failed"), "exit code 1", ""),
        (a_pod(state=_ended(137, "OOMKilled"), phase="Failed"), "exit code 137", "OOMKilled"),
        (a_pod(phase="Failed", reason="Evicted", message="no disk"), "Evicted", "no disk"),
        (a_pod(state={"waiting": _NO_IMAGE}, phase="Pending"), "ImagePullBackOff", "not found"),
        (a_pod(phase="Pending", conditions=[_NO_PLACE]), "not placed", "no GPU"),
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


def test_a_report_is_plain_values_and_a_screen() -> None:
    job = a_job(
        conditions=conditions_of("Created", "Running"),
        observedGeneration=2,
        replicaStatuses={"Worker": {"ready": 2}},
        startTime=BORN,
        round=3,
        worldSize=4,
        step=120,
        lastCheckpointStep=100,
        restarts={"failed": 1, "killed": 0, "lost": 2, "planned": 5},
        attempt=1,
    )
    event = an_event("ElasticJob", "one", uid="u1", message="a pod was replaced", type="Normal")
    report = job_report(job, [a_pod(state={"running": {}})], [event], ["no events: forbidden"])
    plain = json.loads(json.dumps(report.as_dict()))
    assert (plain["name"], plain["state"], plain["checkpoint_step"]) == ("one", "running", 100)
    assert plain["conditions"][1]["reason"] == "RunningReason"
    shown = on_screen(screen.status(report, NOW))
    for words in (
        "job one · namespace team · running · 5m old",
        "note    why Running",
        "runs    train.py --lr 1 (x:1)",
        "pods    2 of 3 ready (1 to 4)",
        "round   3: 4 workers",
        "step    120 · last checkpoint: step 100",
        "faults  1 failed, 0 killed, 2 lost, 5 planned · started again 1 time",
        "one-worker-0",
        "a pod was replaced",
        "no events: forbidden",
    ):
        assert words in shown
    assert "the API server does not answer" in on_screen(
        screen.status(report, NOW, unreachable=True)
    )


def test_of_a_job_without_a_status_the_screen_makes_nothing_up() -> None:
    job = a_job()
    del job["status"]
    line = job_line(job)
    assert (line.round, line.ready, line.behind) == (None, 0, True)
    shown = on_screen(screen.jobs([line], NOW))
    assert shown.splitlines()[1].split() == ["one", "unseen", "–", "3", "–", "–", "0", "5m"]


def test_what_went_wrong_last_is_shown_and_no_world_where_there_is_none() -> None:
    job = a_job()
    job["status"] |= {"lastFault": "worker 1 was killed", "worldSize": 0, "round": 3}
    shown = on_screen(screen.status(job_report(job, [], []), NOW))
    assert "last    worker 1 was killed" in shown
    assert "round   3\n" in shown.replace(" \n", "\n")


def test_a_job_that_has_ended_says_how_long_it_ran() -> None:
    job = a_job(
        conditions=conditions_of("Created", "Failed"),
        startTime=BORN,
        completionTime="2026-01-02T03:07:05Z",
    )
    shown = on_screen(screen.status(job_report(job, [], []), NOW))
    assert "failed · ran for 3m, ended 2m ago" in shown
    assert "note    why Failed" in shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")],
)
def test_ages_are_short(seconds: int, said: str) -> None:
    assert screen.age(1000.0, 1000.0 + seconds) == said


def test_an_unknown_time_is_a_dash() -> None:
    assert screen.age(0.0, 1000.0) == "–"


def _looks(*found: int | Exception) -> Callable[[], int]:
    answers: Iterator[int | Exception] = iter(found)

    def look() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def test_it_ends_with_the_look_that_is_the_last() -> None:
    assert list(poll(_looks(2, 3, 4), 1, 0.0, lambda now: now == 3)) == [1, 2, 3]


def test_a_first_look_that_is_the_last_is_the_only_one() -> None:
    assert list(poll(_looks(), 1, 3600.0, lambda now: True)) == [1]


def test_a_cluster_that_does_not_answer_is_asked_again() -> None:
    look = _looks(ClusterUnreachable("down"), ClusterUnreachable("down"), 2)
    assert list(poll(look, 1, 0.0, lambda now: now == 2)) == [1, None, None, 2]


def test_a_refusal_is_not_waited_for() -> None:
    looks = poll(_looks(NotAllowed("no right"), 2), 1, 0.0, lambda now: now == 2)
    assert next(looks) == 1
    with pytest.raises(NotAllowed):
        next(looks)
