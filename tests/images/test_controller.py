"""The image of the controller, started with a read-only root."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.etcd_server import free_port
from tests.images.conftest import OWN_BASE, Container, Images, docker
from tests.kube.cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.slow("the first test builds the images"),
]

CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


def test_without_a_cluster_it_says_so(images: Images) -> None:
    ended = docker("run", "--rm", *CONFINED, images.controller)
    assert ended.returncode == 2
    assert "KUBECONFIG" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def await_answer(url: str, asked: Container, patience: float = 60.0) -> None:
    """Waits until a URL answers well."""
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        said = docker("logs", asked.name)
        assert time.monotonic() < deadline, f"{url} does not answer:\n{said.stdout}{said.stderr}"
        time.sleep(0.1)


def test_it_gets_ready_for_a_cluster(
    images: Images, start: Callable[..., Container], tmp_path: Path
) -> None:
    cluster = FakeCluster()
    try:
        config = cluster.kubeconfig(tmp_path / "kubeconfig")
        config.chmod(0o644)
        port = free_port()
        options = (
            *(*CONFINED, "--network", "host", "--tmpfs", "/tmp"),
            *("--env", "KUBECONFIG=/kubeconfig", "--volume", f"{config}:/kubeconfig:ro"),
        )
        controller = start(images.controller, f"--liveness-port={port}", options=options)
        await_answer(f"http://127.0.0.1:{port}/readyz", controller)
        assert controller.stop(grace=30) == 0
    finally:
        cluster.close()


def test_nobody_is_root_in_it(images: Images) -> None:
    ended = docker("run", "--rm", "--entrypoint", "id", images.controller, "-u")
    assert ended.stdout.strip() == "10001"


def test_it_has_no_torch_and_is_small(images: Images) -> None:
    see = "import importlib.util; print(importlib.util.find_spec('torch'))"
    ended = docker("run", "--rm", "--entrypoint", "python3", images.controller, "-c", see)
    assert ended.stdout.strip() == "None", ended.stderr
    size = int(docker("inspect", "--format", "{{.Size}}", images.controller).stdout)
    if images.base == OWN_BASE:
        assert size <= 150_000_000
