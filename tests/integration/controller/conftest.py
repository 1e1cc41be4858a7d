"""The controller as a process of its own, against the fake API server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests import processes
from tests.etcd_server import free_port
from tests.kube.cluster import FakeCluster
from tests.kube.kinds import JOB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE = 60.0
NAMESPACE = "default"
# A controller that cannot renew its Lease in time ends, and nobody starts it again here: long
# enough for a loaded machine, short enough for a test that waits for the next one.
SHORT_LEASE = ("--lease-seconds", "8")


class Running:
    """A controller that was started."""

    def __init__(self, command: list[str], log: Path, config: Path, port: int) -> None:
        self.log, self.port = log, port
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KUBECONFIG": str(config)},
            )

    def probe(self, path: str) -> tuple[int, str]:
        """What it answers at ``/readyz`` and the like; code 0 if it does not listen yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as said:
                return said.status, said.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def wait_until_ready(self) -> None:
        """Returns when it looks after jobs."""
        self.wait_for_log("controller.ready")

    def wait_for_log(self, words: str) -> None:
        """Returns when it has written something."""

        def said_or_ended() -> bool:
            return self.process.poll() is not None or words in self.log.read_text()

        processes.wait_for(said_or_ended, _PATIENCE, f"{words!r} in the log", self.story)
        assert words in self.log.read_text(), f"it has ended without {words!r}:\n{self.story()}"

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and gives the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(_PATIENCE)

    def story(self) -> str:
        """Its log."""
        return self.log.read_text()[-8000:]


class Scene(FakeCluster):
    """A cluster, and the controllers that a test starts.

    Args:
        folder: for their logs and their kubeconfig.

    Attributes:
        controllers: in the order in which they were started.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.controllers: list[Running] = []
        self._folder = folder

    @property
    def controller(self) -> Running:
        """The first one; it is started if it was not."""
        return self.controllers[0] if self.controllers else self.start()

    def start(self, *options: str, ready: bool = True) -> Running:
        """Starts a controller; options are those of the command."""
        port, number = free_port(), len(self.controllers)
        config = self.kubeconfig(self._folder / "kubeconfig")
        command = [sys.executable, "-m", "elastic_runtime.controller"]
        command += ["--liveness-port", str(port), *options]
        running = Running(command, self._folder / f"controller{number}.log", config, port)
        self.controllers.append(running)
        if ready:
            running.wait_until_ready()
        return running

    def submit(self, name: str = "digits", replicas: int = 2, **spec: Any) -> dict[str, Any]:
        """Submits a job to the controller; keywords go into its spec."""
        assert self.controller
        container = {"name": "elasticjob-worker", "image": "train", "args": ["train.py"]}
        template = {"spec": {"containers": [container]}}
        worker = {"replicas": replicas, "template": template} | spec.pop("worker", {})
        namespace = spec.pop("namespace", NAMESPACE)
        whole = {"minReplicas": 1, "maxReplicas": 4, "replicaSpecs": {"Worker": worker}, **spec}
        job = {
            "apiVersion": JOB.api_version,
            "kind": JOB.name,
            "metadata": {"name": name, "namespace": namespace},
            "spec": whole,
        }
        return self.add(JOB, job)

    def running(self, name: str = "digits", replicas: int = 2, **spec: Any) -> dict[str, Any]:
        """Submits a job and waits until all its pods run."""
        job = self.submit(name, replicas, **spec)
        wait_until_running(self, name, replicas)
        return job

    def close(self) -> None:
        """Ends the controllers, and the cluster."""
        for running in self.controllers:
            running.end(signal.SIGKILL)
        super().close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Scene]:
    """An empty cluster, in which controllers can be started."""
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def wait_until_running(cluster: FakeCluster, name: str, replicas: int) -> None:
    """Returns when a job's status says that it has so many pods, all of them ready."""

    def runs() -> bool:
        status = cluster.job(name).get("status") or {}
        workers = (status.get("replicaStatuses") or {}).get("Worker") or {}
        return (
            workers.get("ready") == status.get("replicas") == replicas
            and cluster.condition(name, "Running").get("status") == "True"
        )

    cluster.wait_for(runs, f"{replicas} pods of {name} run")


def uids(cluster: FakeCluster, job: str = "digits") -> dict[str, str]:
    """The identities of a job's workers, by name."""
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods(job).items()}


@contextmanager
def replaced(cluster: FakeCluster, name: str, job: str = "digits") -> Iterator[None]:
    """What is done within has a pod replaced: waits for another one of its name."""
    before = uids(cluster, job)[name]
    yield
    cluster.wait_for(lambda: uids(cluster, job).get(name, before) != before, f"another {name}")


def has_warned(cluster: FakeCluster, words: str) -> None:
    """Waits for an event of the job that holds these words."""
    cluster.wait_for(
        lambda: any(
            words in one["message"] for one in cluster.events("digits") if one["type"] == "Warning"
        ),
        f"a warning with {words!r}",
    )


def let_pass(cluster: FakeCluster, renewals: int) -> None:
    """Returns after so many renewals of the Lease: the only thing that goes on by itself."""
    until = cluster.counts()["update leases"] + renewals
    cluster.wait_for(lambda: cluster.counts()["update leases"] >= until, f"{renewals} renewals")


def assert_idle(cluster: FakeCluster) -> None:
    """Whoever has nothing to do asks nothing."""
    let_pass(cluster, 2)
    before = cluster.counts()
    let_pass(cluster, 3)
    assert set(cluster.counts() - before) == {"update leases"}
