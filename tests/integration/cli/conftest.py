"""What tests of ``elasticctl`` on Kubernetes share: a cluster, a kubeconfig, and its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.ctl.elasticctl import main
from elastic_runtime.cli.kube.build_job import Submission, make_job
from tests.kube.cluster import FakeCluster
from tests.kube.kinds import JOB
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

_COMMAND = (sys.executable, "-m", "elastic_runtime.cli.ctl.elasticctl")
PATIENCE = 60.0

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def environ(cluster: FakeCluster, tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has a kubeconfig, and of no pod."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_"))}
    return {**ours, "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig"))}


@pytest.fixture
def ctl(environ: dict[str, str]) -> Ctl:
    """Runs the command to its end."""

    def call(
        *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        done = subprocess.run(
            [*_COMMAND, *arguments],
            input=stdin,
            env={**environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def quick(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ctl:
    """The same in this process, for what is about words and codes: a process takes a second."""
    for name in os.environ.keys() - environ.keys():
        monkeypatch.delenv(name)

    def call(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        with monkeypatch.context() as patched:
            for name, value in {**environ, **(env or {})}.items():
                patched.setenv(name, value)
            code = main(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


class Running:
    """A command that goes on, and what it has printed so far."""

    def __init__(self, environ: dict[str, str], log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [*_COMMAND, *arguments], env=environ, stdout=out, stderr=subprocess.STDOUT
            )

    def lines(self) -> list[str]:
        """All that it has printed, but for a line that is not whole yet."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n")]

    def until(self, words: str) -> str:
        """Waits for a line that holds these words."""

        def said() -> list[str]:
            ended = self._process.poll() is not None
            found = [line for line in self.lines() if words in line]
            assert found or not ended, f"it ended without {words!r}:\n{self._log.read_text()}"
            return found

        return wait_for(said, PATIENCE, repr(words), self._log.read_text)[0]

    def end(self, number: int | None = None) -> tuple[int, list[str]]:
        """Waits for its end, after a signal if one is given; its code, and all lines."""
        if number is not None:
            self._process.send_signal(number)
        return self._process.wait(PATIENCE), self.lines()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)


Start = Callable[..., Running]


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a command that goes on."""
    running: list[Running] = []

    def begin(*arguments: str) -> Running:
        running.append(Running(environ, tmp_path / f"{len(running)}.log", *arguments))
        return running[-1]

    yield begin
    for one in running:
        one.close()


def assert_refused(ctl: Ctl, words: str, *arguments: str, code: int = 2) -> str:
    """A command ends with this code, and says these words; all that it says of it."""
    ended, _, err = ctl(*arguments)
    assert (ended, words in err) == (code, True), err
    return err


def add_job(cluster: FakeCluster, name: str = "one", **flags: Any) -> dict[str, Any]:
    """A job of two pods, as ``elasticctl submit`` makes it, in the cluster."""
    flags = {"low": 1, "high": 4, "replicas": 2, "namespace": "default", **flags}
    return cluster.add(JOB, make_job(Submission("train.py", "x:1", name, **flags)))
