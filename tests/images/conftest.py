"""The images, built once for all tests by `scripts/build-images`, and a way to run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docker_engine import LABEL
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
# What scripts/build-images builds on when it is told nothing.
OWN_BASE, PUBLIC_BASE = "elastic-base:bookworm", "python:3.11-slim-bookworm"


def docker(*args: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Runs docker's own command; its output is text, and a failure of it no exception."""
    return subprocess.run(["docker", *args], capture_output=True, text=True, timeout=timeout)


@dataclass(frozen=True)
class Images:
    """Names of images.

    Attributes:
        worker: elastic-run with everything.
        controller: the controller, without torch.
        base: what they were built on, "" if they were given.
    """

    worker: str
    controller: str
    base: str = ""


@pytest.fixture(scope="session")
def images() -> Images:
    """Both images; those named in the environment, else they are built.

    ``ELASTIC_TEST_IMAGE`` and ``ELASTIC_CONTROLLER_IMAGE`` name them.
    """
    if not shutil.which("docker") or docker("info").returncode:
        pytest.skip("docker does not answer: images can be neither built nor started")
    given = [os.environ.get(name) for name in ("ELASTIC_TEST_IMAGE", "ELASTIC_CONTROLLER_IMAGE")]
    if all(given):
        return Images(*given)  # type: ignore[arg-type]
    built = subprocess.run(
        [ROOT / "scripts" / "build-images"], capture_output=True, text=True, timeout=1500
    )
    assert built.returncode == 0, built.stderr
    worker, controller = built.stdout.split()
    own = OWN_BASE if docker("image", "inspect", OWN_BASE).returncode == 0 else PUBLIC_BASE
    return Images(worker, controller, os.environ.get("BASE_IMAGE", own))


@dataclass(frozen=True)
class Container:
    """A container of a test, running or not."""

    name: str

    def log(self) -> str:
        """All that it has said."""
        said = docker("logs", self.name)
        return said.stdout + said.stderr

    def await_line(self, words: str) -> None:
        """Waits until it has said something."""
        wait_for(lambda: words in self.log(), 90.0, repr(words), self.log, pause=0.5)

    def stop(self, grace: int) -> int:
        """SIGTERM, and SIGKILL after so many seconds; the exit code."""
        docker("stop", "--time", str(grace), self.name, timeout=grace + 60)
        return int(docker("inspect", "--format", "{{.State.ExitCode}}", self.name).stdout)


@pytest.fixture
def start() -> Iterator[Callable[..., Container]]:
    """Starts containers in the background: ``start(image, *command, options=[...])``."""
    started: list[str] = []

    def begin(image: str, *command: str, options: tuple[str, ...] = ()) -> Container:
        name = f"elastic-test-{uuid.uuid4().hex[:8]}"
        label = ("--label", f"{LABEL}={os.getpid()}")
        begun = docker("run", "--detach", "--name", name, *label, *options, image, *command)
        started.append(name)
        assert begun.returncode == 0, begun.stderr
        return Container(name)

    yield begin
    for name in started:
        docker("rm", "--force", "--volumes", name)
