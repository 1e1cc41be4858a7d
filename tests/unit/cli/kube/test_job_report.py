"""What is said about jobs of a cluster, from the objects that the API server gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from elastic_runtime.cli.kube import job_report as states
from elastic_runtime.cli.kube import job_screen as screen
from elastic_runtime.cli.kube.job_report import bounds, event_lines, job_line, job_report, pod_line
from elastic_runtime.controller.decide.job_spec import JobSpec

BORN = "2026-01-02T03:04:05Z"
NOW = states.moment("2026-01-02T03:09:05Z")


def _job(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    container = {"name": "elasticjob-worker", "image": "x:1", "args": ["train.py", "--lr", 1]}
    sidecar = {"name": "proxy", "image": "y:1"}
    worker = {"replicas": 3, "template": {"spec": {"containers": [sidecar, container]}}}
    return {
        "metadata": {
            "name": "one",
            "namespace": "team",
            "uid": "u1",
            "generation": 2,
            "creationTimestamp": BORN,
        },
        "spec": {
            "minReplicas": 1,
            "maxReplicas": 4,
            "replicaSpecs": {"Worker": worker},
            **(spec or {}),
        },
        "status": status,
    }


def _conditions(*holding: str) -> list[dict[str, str]]:
    types = ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
    return [
        {
            "type": type_,
            "status": str(type_ in holding),
            "reason": f"{type_}Reason",
            "message": f"why {type_}",
            "lastTransitionTime": BORN,
        }
        for type_ in types
    ]


def _pod(index: int | None = 0, state: dict[str, Any] | None = None, **status: Any) -> Any:
    labels = {"app.kubernetes.io/component": "etcd" if index is None else "worker"}
    if index is not None:
        labels |= {"replica-index": str(index), "elastic.pytorch.org/attempt": "1"}
    statuses = [] if state is None else [{"name": "elasticjob-worker", "state": state}]
    return {
        "metadata": {
            "name": "one-etcd" if index is None else f"one-worker-{index}",
            "labels": labels,
            "creationTimestamp": BORN,
        },
        "spec": {"containers": [{"name": "elasticjob-worker"}], "nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": statuses,
            **status,
        },
    }


def _event(kind: str, name: str, at: str = BORN, uid: str | None = None, **more: Any) -> Any:
    about = {"kind": kind, "name": name, **({} if uid is None else {"uid": uid})}
    return {"metadata": {}, "involvedObject": about, "lastTimestamp": at, "reason": "R", **more}


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
    line = job_line(_job(conditions=_conditions(*holding) if holding else []))
    assert line.state == state
    # What is pending says why it does not run.
    why = "Running" if state == states.PENDING else holding[-1] if holding else ""
    assert line.why == (f"why {why}" if why else "")
    assert line.over is (state in (states.SUCCEEDED, states.FAILED))


def test_a_job_that_is_being_deleted_says_so_first() -> None:
    job = _job(conditions=_conditions("Created", "Running"))
    job["metadata"]["deletionTimestamp"] = BORN
    assert job_line(job).state == states.DELETING


def test_a_line_has_the_printer_columns() -> None:
    line = job_line(
        _job(
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
    job = _job()
    del job["status"]
    line = job_line(job)
    assert (line.world, line.round, line.step, line.ready, line.behind) == (
        *(None, None, None),
        0,
        True,
    )
    shown = _shown(screen.jobs([line], NOW))
    assert shown.splitlines()[1].split() == ["one", "unseen", "3", "0", "–", "–", "–", "0", "5m"]


def test_a_job_whose_spec_cannot_be_read_says_so_and_is_not_unseen() -> None:
    refused = {"status": "False", "reason": "InvalidSpec", "message": "spec.minReplicas: no"}
    line = job_line(
        _job(conditions=[{"type": "Created", **refused}, {"type": "Running", **refused}])
    )
    assert (line.state, line.why) == (states.PENDING, "spec.minReplicas: no")


def test_bounds_that_were_left_out_are_the_size() -> None:
    spec = _job()["spec"]
    assert bounds(spec) == (1, 4)
    del spec["minReplicas"], spec["maxReplicas"]
    assert bounds(spec) == (3, 3)
    del spec["replicaSpecs"]["Worker"]["replicas"]
    assert bounds(spec) == (1, 1)
    for given in ({}, {"minReplicas": 2}, {"minReplicas": 2, "maxReplicas": 4}):
        job = _job()
        job["spec"] = {**spec, **given}
        read = JobSpec.of(job)  # the controller understands the same
        assert (*bounds(job["spec"]), job_line(job).desired) == (
            *(read.minimum, read.maximum),
            read.replicas,
        )


@pytest.mark.parametrize(
    ("pod", "state", "detail"),
    [
        (_pod(state={"running": {}}), "running", ""),
        (_pod(state={"terminated": {"exitCode": 0}}, phase="Succeeded"), "succeeded", ""),
        (
            _pod(state={"terminated": {"exitCode": 1, "reason": "Error"}}, phase="Failed"),
            "exit code 1",
            "",
        ),
        (
            _pod(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, phase="Failed"),
            "exit code 137",
            "OOMKilled",
        ),
        (_pod(phase="Failed", reason="Evicted", message="no disk"), "Evicted", "no disk"),
        (
            _pod(
                state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}},
                phase="Pending",
            ),
            "ImagePullBackOff",
            "not found",
        ),
        (
            _pod(
                phase="Pending",
                conditions=[{"type": "PodScheduled", "status": "False", "message": "no GPU"}],
            ),
            "not placed",
            "no GPU",
        ),
        (_pod(phase="Pending"), "pending", ""),
    ],
)
def test_a_pod_says_why_it_does_not_run(pod: Any, state: str, detail: str) -> None:
    line = pod_line(pod)
    assert (line.state, line.detail) == (state, detail)


def test_a_pod_that_is_being_deleted_leaves() -> None:
    pod = _pod(state={"running": {}})
    pod["metadata"]["deletionTimestamp"] = BORN
    assert pod_line(pod).state == "leaving"


def test_pods_are_in_the_order_of_their_indices_and_the_etcd_comes_last() -> None:
    report = job_report(_job(), [_pod(None), _pod(10), _pod(2)], [])
    assert [pod.name for pod in report.pods] == ["one-worker-2", "one-worker-10", "one-etcd"]
    assert [(pod.role, pod.index, pod.attempt) for pod in report.pods[1:]] == [
        ("worker", 10, 1),
        ("etcd", -1, 0),
    ]


def test_only_events_of_this_job_and_its_pods_are_taken() -> None:
    ours = [
        _event("ElasticJob", "one", "2026-01-02T03:05:00Z", uid="u1"),
        _event("Pod", "one-worker-0", "2026-01-02T03:04:30Z"),
        _event("Pod", "one-etcd", "2026-01-02T03:04:31Z"),
    ]
    others = [
        _event("ElasticJob", "one", uid="u0"),  # an older job of that name
        _event("Pod", "one-worker-0", "2026-01-02T03:04:00Z"),  # and its pod
        _event("Pod", "one-worker-two"),
        _event("Pod", "one-two-worker-0"),
        _event("ElasticJob", "two"),
    ]
    lines = event_lines(_job(), ours + others)
    assert [line.object for line in lines] == ["one-worker-0", "one-etcd", "one"]


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
    (line,) = event_lines(_job(), [_event("ElasticJob", "one", uid="u1", **times)])
    assert line.at == states.moment(BORN)
    assert line.count == (4 if "series" in times else 1)


def test_a_report_is_plain_values_and_a_screen() -> None:
    job = _job(
        conditions=_conditions("Created", "Running"),
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
    event = _event("ElasticJob", "one", uid="u1", message="a pod was replaced", type="Normal")
    report = job_report(job, [_pod(state={"running": {}})], [event], ["no events: forbidden"])
    plain = json.loads(json.dumps(report.as_dict()))
    assert (plain["name"], plain["state"], plain["checkpoint_step"]) == ("one", "running", 100)
    assert plain["conditions"][1]["reason"] == "RunningReason"
    shown = _shown(screen.status(report, NOW))
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
    assert "the API server does not answer" in _shown(screen.status(report, NOW, unreachable=True))


def test_a_job_that_has_ended_says_how_long_it_ran() -> None:
    job = _job(
        conditions=_conditions("Created", "Failed"),
        startTime=BORN,
        completionTime="2026-01-02T03:07:05Z",
    )
    shown = _shown(screen.status(job_report(job, [], []), NOW))
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
    assert states.moment("yesterday") == 0.0


def _shown(what: Any) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()
