"""``elasticctl`` and the controller on one cluster: what one asks for, the other does and says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli.conftest import Ctl, assert_refused
from tests.integration.controller.conftest import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Scene]:
    """A cluster with a controller."""
    scene = Scene(tmp_path)
    scene.start()
    yield scene
    scene.close()


def _told(quick: Ctl, name: str = "one") -> dict[str, Any]:
    code, out, err = quick("status", name, "--format", "json")
    assert code == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


def test_a_job_from_its_submission_to_its_deletion(cluster: Scene, quick: Ctl) -> None:
    flags = ("--image", "x:1", "--name", "one", "--max", "3", "--spares", "0")
    assert quick("submit", "train.py", *flags)[0] == 0
    cluster.wait_for(lambda: len(cluster.pods("one")) == 3, "three pods")
    cluster.await_condition("one", "Running")
    told = _told(quick)
    assert (told["state"], told["desired"], told["bounds"]) == ("running", 3, [1, 3])
    assert [pod["role"] for pod in told["pods"]] == ["worker", "worker", "worker", "etcd"]

    assert quick("scale", "one", "2")[0] == 0
    cluster.wait_for(lambda: len(cluster.pods("one")) == 2, "two pods")
    assert quick("suspend", "one")[0] == 0
    cluster.await_condition("one", "Suspended")
    assert (_told(quick)["state"], cluster.pods("one")) == ("suspended", {})
    assert quick("resume", "one")[0] == 0
    cluster.wait_for(lambda: len(cluster.pods("one")) == 2, "two pods again")
    events = json.loads(quick("events", "one", "--format", "json")[1])
    assert {"Accepted", "Scaled", "Suspended", "Resumed"} <= {one["reason"] for one in events}

    assert quick("delete", "one", "--wait")[:2] == (0, "one is gone\n")
    assert (cluster.pods("one"), cluster.pods("one", "etcd")) == ({}, {})


def test_a_failure_is_told_with_its_pod_and_its_log(cluster: Scene, quick: Ctl) -> None:
    assert quick("submit", "train.py", "--image", "x:1", "--name", "one")[0] == 0
    cluster.await_condition("one", "Running")
    words = "2026-01-01T00:00:01.000000000Z [default0]:no such file\n"
    cluster.kubelet.write("default", "one-worker-0", words)
    cluster.kubelet.finish("default", "one-worker-0", 1)
    cluster.await_condition("one", "Failed")
    told = _told(quick)
    assert told["state"] == "failed"
    assert "one-worker-0" in told["why"]
    assert [pod["state"] for pod in told["pods"] if pod["role"] == "worker"] == ["exit code 1"]
    assert quick("logs", "one", "--rank", "0")[:2] == (0, "worker-0 | [default0]:no such file\n")
    assert_refused(quick, "one has failed already", "scale", "one", "1")
