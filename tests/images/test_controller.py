"""The image of the controller, started with a read-only root."""

from __future__ import annotations

import contextlib
import shutil
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.etcd_server import free_port
from tests.images.conftest import OWN_BASE, Container, Images, docker
from tests.kube.cluster import FakeCluster
from tests.kube.door import Door
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


def test_without_a_cluster_it_says_so(images: Images) -> None:
    ended = docker("run", "--rm", *CONFINED, images.controller)
    assert ended.returncode == 2
    assert "KUBECONFIG" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def answers(url: str) -> bool:
    """Whether a URL answers well."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def test_it_gets_ready_for_a_cluster(
    images: Images, start: Callable[..., Container], tmp_path: Path
) -> None:
    cluster, door = FakeCluster(), None
    try:
        account, port, api_port = tmp_path / "account", free_port(), free_port()
        account.mkdir(mode=0o755)
        door = Door(cluster.url, "127.0.0.1", api_port, tmp_path)
        shutil.copy(tmp_path / "server.pem", account / "ca.crt")
        (account / "token").write_text(cluster.server.token or "none")
        (account / "namespace").write_text("default")
        options = (
            *(*CONFINED, "--network", "host", "--tmpfs", "/tmp"),
            *("--env", "KUBERNETES_SERVICE_HOST=127.0.0.1"),
            *("--env", f"KUBERNETES_SERVICE_PORT={api_port}"),
            *("--volume", f"{account}:/var/run/secrets/kubernetes.io/serviceaccount:ro"),
        )
        controller = start(images.controller, f"--liveness-port={port}", options=options)
        url = f"http://127.0.0.1:{port}/readyz"
        wait_for(lambda: answers(url), 60.0, url, controller.log)
        assert controller.stop(grace=30) == 0
    finally:
        if door is not None:
            door.close()
        cluster.close()


def test_it_has_no_torch_and_is_small(images: Images) -> None:
    see = "import importlib.util; print(importlib.util.find_spec('torch'))"
    ended = docker("run", "--rm", "--entrypoint", "python3", images.controller, "-c", see)
    assert ended.stdout.strip() == "None", ended.stderr
    size = int(docker("inspect", "--format", "{{.Size}}", images.controller).stdout)
    if images.base == OWN_BASE:
        assert size <= 150_000_000
