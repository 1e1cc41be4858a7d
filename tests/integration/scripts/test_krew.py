"""The plugin for krew: what is built works with Python alone, and is the same each time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.kube.cluster import FakeCluster
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

BUILD = Path(__file__).parents[3] / "scripts" / "build-krew"
URL = "https://example.org/releases/v0"
NO_PACKAGES = 3
FETCHING = 300.0  # seconds


def build(output: Path) -> Path:
    """The archive; skips the test where pip reaches no packages."""
    command = [sys.executable, str(BUILD), "--url", URL, "--output", str(output)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=FETCHING)
    if ran.returncode == NO_PACKAGES:
        pytest.skip(ran.stderr.splitlines()[-1])
    assert ran.returncode == 0, ran.stderr
    [made] = output.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("krew"))


@pytest.fixture(scope="module")
def plugin(archive: Path) -> Path:
    """What krew links to from its folder of programs."""
    store = archive.parent / "store"
    with tarfile.open(archive) as tar:
        tar.extractall(store, filter="data")
    link = archive.parent / "kubectl-elastic"
    link.symlink_to(store / "kubectl-elastic")
    return link


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an empty cluster."""
    fake = FakeCluster()
    yield fake.kubeconfig(tmp_path / "kubeconfig")
    fake.close()


def run(plugin: Path, *words: str, kubeconfig: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the plugin by a Python that sees no packages of anybody."""
    python = Path(sys.base_prefix, "bin", "python3")
    environment = {"PATH": os.defpath, "HOME": str(plugin.parent), "KUBECONFIG": kubeconfig}
    return subprocess.run(
        [str(python), "-I", "-S", str(plugin), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
    )


def test_the_manifest_is_of_this_archive(archive: Path) -> None:
    text = (archive.parent / "elastic.yaml").read_text()
    manifest = yaml.safe_load(text)
    assert "<" not in text
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    # The file must be called as the plugin is.
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "elastic")
    [platform] = manifest["spec"]["platforms"]
    assert platform["uri"] == f"{URL}/{archive.name}"
    assert f"-{manifest['spec']['version']}.tar.gz" in archive.name
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        assert tar.getmember(platform["bin"]).mode & 0o111
        assert "LICENSE" in tar.getnames()


def test_nothing_in_it_is_for_one_machine(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []
    assert build(tmp_path).read_bytes() == archive.read_bytes()


def test_it_says_what_it_can_do(plugin: Path) -> None:
    ran = run(plugin, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    for command in ("submit", "status", "scale", "logs", "delete"):
        assert f"\n  {command} " in ran.stdout
    assert "\n  checkpoint " not in ran.stdout


def test_it_starts_and_shows_a_job(plugin: Path, cluster: Path) -> None:
    config = str(cluster)
    submit = ("submit", "--name", "digits", "--image", "i", "--max", "2", "train.py")
    for words, said in (
        (submit, "submitted digits"),
        (("jobs",), "digits"),
        (("status", "digits"), "0 of 2 ready"),
        (("scale", "digits", "1"), "digits: 1 pod"),
        (("events", "digits"), "no events"),
        (("delete", "digits"), "being deleted"),
    ):
        ran = run(plugin, *words, kubeconfig=config)
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "words", [("runs", "--rdzv-endpoint", "etcd://h:2379"), ("checkpoint", "list", ".")]
)
def test_it_says_what_it_lacks(plugin: Path, words: tuple[str, ...]) -> None:
    ran = run(plugin, *words)
    assert ran.returncode == 1
    assert ran.stderr.startswith("kubectl elastic: error: this needs the package")
    assert len(ran.stderr.splitlines()) == 1
