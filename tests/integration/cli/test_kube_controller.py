"""``elasticctl`` and the controller on one cluster: what one asks for, the other does and says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli.conftest import PATIENCE, Ctl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube.cluster import FakeCluster


@pytest.fixture(autouse=True)
def controller(cluster: FakeCluster, environ: dict[str, str]) -> Iterator[None]:
    """The controller, as a process."""
    assert cluster.url  # it is there first
    process = subprocess.Popen([sys.executable, "-m", "elastic_runtime.controller"], env=environ)
    yield
    process.terminate()
    process.wait(PATIENCE)


def _told(ctl: Ctl, name: str = "one") -> dict[str, Any]:
    code, out, err = ctl("status", name, "--format", "json")
    assert code == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


def _until(cluster: FakeCluster, type_: str, status: str = "True") -> None:
    cluster.wait_for(
        lambda: cluster.condition("one", type_).get("status") == status,
        f"{type_} is {status}",
        PATIENCE,
    )


def test_a_job_from_its_submission_to_its_deletion(cluster: FakeCluster, ctl: Ctl) -> None:
    flags = ("--image", "x:1", "--name", "one", "--max", "3", "--spares", "0")
    assert ctl("submit", "train.py", *flags)[0] == 0
    cluster.wait_for(lambda: len(cluster.pods("one")) == 3, "three pods", PATIENCE)
    _until(cluster, "Running")
    told = _told(ctl)
    assert (told["state"], told["desired"], told["bounds"]) == ("running", 3, [1, 3])
    assert [pod["role"] for pod in told["pods"]] == ["worker", "worker", "worker", "etcd"]

    assert ctl("scale", "one", "2")[0] == 0
    cluster.wait_for(lambda: len(cluster.pods("one")) == 2, "two pods", PATIENCE)
    assert ctl("suspend", "one")[0] == 0
    _until(cluster, "Suspended")
    assert (_told(ctl)["state"], cluster.pods("one")) == ("suspended", {})
    assert ctl("resume", "one")[0] == 0
    cluster.wait_for(lambda: len(cluster.pods("one")) == 2, "two pods again", PATIENCE)
    events = json.loads(ctl("events", "one", "--format", "json")[1])
    assert {"Accepted", "Scaled", "Suspended", "Resumed"} <= {one["reason"] for one in events}

    assert ctl("delete", "one", "--wait")[:2] == (0, "one is gone\n")
    assert (cluster.pods("one"), cluster.pods("one", "etcd")) == ({}, {})


def test_a_failure_is_told_with_its_pod_and_its_log(cluster: FakeCluster, ctl: Ctl) -> None:
    assert ctl("submit", "train.py", "--image", "x:1", "--name", "one")[0] == 0
    _until(cluster, "Running")
    words = "2026-01-01T00:00:01.000000000Z [default0]:no such file\n"
    cluster.kubelet.finish("default", "one-worker-0", 1, log=words)
    _until(cluster, "Failed")
    told = _told(ctl)
    assert told["state"] == "failed"
    assert "one-worker-0" in told["why"]
    assert [pod["state"] for pod in told["pods"] if pod["role"] == "worker"] == ["exit code 1"]
    assert ctl("logs", "one", "--rank", "0")[:2] == (0, "worker-0 | [default0]:no such file\n")
    code, _, err = ctl("scale", "one", "1")
    assert (code, "one has failed already" in err) == (2, True)
