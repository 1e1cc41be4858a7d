"""What a pod's looks say about its work."""

from __future__ import annotations

import pytest

from elastic_runtime.controller.decide.job_types import ApplyManifest, PodView, Problem


@pytest.mark.parametrize(
    ("pod", "ended", "runs"),
    [
        (PodView("a", 0, "a"), False, False),
        (PodView("a", 0, "a", phase="Running"), False, True),
        (PodView("a", 0, "a", phase="Running", deleting=True), False, False),
        (PodView("a", 0, "a", phase="Running", exit_code=0), True, False),  # a sidecar goes on
        (PodView("a", 0, "a", phase="Succeeded"), True, False),
        (PodView("a", 0, "a", phase="Failed"), True, False),
    ],
)
def test_which_pods_take_part(pod: PodView, ended: bool, runs: bool) -> None:
    assert (pod.ended, pod.runs) == (ended, runs)


def test_how_long_a_worker_ran() -> None:
    assert PodView("a", 0, "a", started_at=10.0, finished_at=25.0).lifetime == 15.0
    assert PodView("a", 0, "a", finished_at=25.0).lifetime == 0.0
    assert PodView("a", 0, "a", started_at=30.0, finished_at=25.0).lifetime == 0.0


def test_how_problems_and_manifests_are_called() -> None:
    assert str(Problem("X", "no", "spec.etcd")) == "spec.etcd: no"
    assert str(Problem("X", "no")) == "no"
    made = ApplyManifest({"kind": "Service", "metadata": {"name": "digits"}})
    assert (made.kind, made.name) == ("Service", "digits")
