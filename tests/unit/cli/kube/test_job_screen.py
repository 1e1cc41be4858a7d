"""What a terminal shows of jobs of a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from elastic_runtime.cli.kube import job_screen as screen
from elastic_runtime.cli.kube.job_report import job_line, job_report
from elastic_runtime.kubernetes.api_times import parse_time
from tests.unit.cli.kube.job_objects import BORN, a_job, a_pod, an_event, conditions_of

NOW = parse_time("2026-01-02T03:09:05Z")


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


def test_of_a_job_without_a_status_the_screen_makes_nothing_up() -> None:
    job = a_job()
    del job["status"]
    shown = _shown(screen.jobs([job_line(job)], NOW))
    assert shown.splitlines()[1].split() == ["one", "unseen", "–", "3", "–", "–", "0", "5m"]


def test_what_went_wrong_last_is_shown_and_no_world_where_there_is_none() -> None:
    job = a_job()
    job["status"] |= {"lastFault": "worker 1 was killed", "worldSize": 0, "round": 3}
    shown = _shown(screen.status(job_report(job, [], []), NOW))
    assert "last    worker 1 was killed" in shown
    assert "round   3\n" in shown.replace(" \n", "\n")


def test_a_job_that_has_ended_says_how_long_it_ran() -> None:
    job = a_job(
        conditions=conditions_of("Created", "Failed"),
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


def _shown(what: Any) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()
