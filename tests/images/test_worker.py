"""The image of a worker, started: as elastic-run, as etcd, and under anybody's user id."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.images.conftest import ROOT, Container, Images, docker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

DIGITS = ("-m", "elastic_runtime.examples.digits")
Start = Callable[..., Container]


def test_it_learns_digits_without_a_network_whoever_it_is(images: Images) -> None:
    """Some clusters choose a user id for each namespace, which nobody has heard of."""
    alone = ("--network", "none", "--user", "123456:0")
    ended = docker("run", "--rm", *alone, images.worker, *DIGITS, "--epochs", "2")
    assert ended.returncode == 0, ended.stderr
    assert "test accuracy 0." in ended.stdout


def test_a_stopped_container_leaves_the_job_in_order(images: Images, start: Start) -> None:
    worker = start(images.worker, *DIGITS, "--epochs", "10000")
    worker.await_line("epoch 1:")
    assert worker.stop(grace=60) == 5
    assert "checkpoint.saved" in worker.log()


@pytest.mark.parametrize("name", ["worker", "controller"])
def test_nobody_is_root_in_it(images: Images, name: str) -> None:
    ended = docker("run", "--rm", "--entrypoint", "id", getattr(images, name), "-u")
    assert ended.stdout.strip() == "10001"


@pytest.mark.parametrize("image", ["worker", "elastic-etcd-test:3.5.1"])
def test_its_etcd_answers(images: Images, start: Start, image: str, docker_works: bool) -> None:
    assert docker_works  # builds the image of the tests' etcd
    name = images.worker if image == "worker" else image
    data = ("--entrypoint", "etcd", "--tmpfs", "/data:mode=1777")
    etcd = start(name, "--data-dir", "/data/etcd", options=data)
    etcd.await_line("ready to serve client requests")
    answer = docker("exec", etcd.name, "etcdctl", "put", "greeting", "hello")
    assert answer.stdout.strip() == "OK", answer.stderr
    assert "hello" in docker("exec", etcd.name, "etcdctl", "get", "greeting").stdout


def test_it_can_be_the_controller(images: Images) -> None:
    command = ("-m", "elastic_runtime.controller", "--help")
    ended = docker("run", "--rm", "--entrypoint", "python", images.worker, *command)
    assert ended.returncode == 0, ended.stderr


def test_the_cuda_variant_asks_for_gpus(images: Images, tmp_path: Path) -> None:
    """The packages are another wheelhouse's; here there is none but pip and the project."""
    if not images.base:
        pytest.skip("the images were given, and so nothing is built")
    pip = (sys.executable, "-m", "pip", "-qq")
    wheels, dist = tmp_path / "wheels", tmp_path / "dist"
    subprocess.run([*pip, "download", "--no-deps", "-d", wheels, "pip"], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", dist, ROOT], check=True)
    tag = "elastic-runtime-worker:test-cuda"
    arguments = ("--build-arg", f"BASE_IMAGE={images.base}", "--build-arg", "VARIANT=cuda")
    dockerfile = ROOT / "docker" / "worker" / "Dockerfile"
    built = docker(
        *("build", "--network", "none", "--tag", tag, *arguments, "--file", str(dockerfile)),
        str(tmp_path),
        timeout=600,
    )
    assert built.returncode == 0, built.stdout[-2000:]
    config = json.loads(docker("inspect", "--format", "{{json .Config}}", tag).stdout)
    docker("rmi", tag)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"]
    assert config["Entrypoint"] == ["elastic-run"]
