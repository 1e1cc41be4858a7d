"""What the last day of commits has changed, and which tests that touches."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
DAY_S = 24 * 3600
# Git's name of a tree in which nothing is.
_EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def _package(*places: str) -> tuple[str, ...]:
    return tuple(f"elastic_runtime/{place}" for place in places)


_CORE = ("agent/", "protocol/", "rendezvous/")
_IN_PLACE = (*_CORE, "system/", "worker/")
# Jobs run the package in processes of their own, and no import says so: what a folder of tests
# exercises, by the beginnings of paths. For a test the nearest folder counts that is listed.
EXERCISES: dict[str, tuple[str, ...]] = {
    "tests/chaos": _package(*_IN_PLACE, "checkpoint/", "data/"),
    "tests/cluster": (*_package("controller/", "kubernetes/", "cli/kube/"), "deploy/", "docker/"),
    "tests/images": ("docker/", "scripts/build-images", "pyproject.toml", "constraints.txt"),
    "tests/integration": _package(*_CORE, "cli/run/", "reporting/"),
    "tests/integration/accelerate": _package("accelerate/", "trainers/"),
    "tests/integration/bench": ("scripts/bench/",),
    "tests/integration/checkpoint": _package("checkpoint/"),
    "tests/integration/cli": _package("cli/ctl/", "cli/kube/"),
    "tests/integration/controller": _package("controller/", "kubernetes/"),
    "tests/integration/data": (*_package("data/"), "docs/data.md"),
    "tests/integration/deploy": ("deploy/",),
    "tests/integration/diloco": _package("diloco/", "worker/"),
    "tests/integration/embedded": _package("rendezvous/"),
    "tests/integration/etcd": _package("rendezvous/"),
    "tests/integration/examples": (*_package("examples/"), "docs/"),
    "tests/integration/hosts": _package("cli/hosts/"),
    "tests/integration/in_place": _package(*_IN_PLACE),
    "tests/integration/kubernetes": _package("kubernetes/"),
    "tests/integration/lightning": _package("lightning/", "trainers/"),
    "tests/integration/scripts": _package("agent/", "cli/run/", "worker/"),
    "tests/integration/slurm": _package("cli/run/", "cli/slurm/"),
    "tests/integration/snapshots": _package("agent/snapshot_server.py", "checkpoint/snapshot/"),
    "tests/integration/torchtitan": _package("torchtitan/", "trainers/"),
    "tests/integration/trainers": _package("trainers/", "worker/"),
    "tests/integration/transformers": _package("transformers/", "trainers/"),
    "tests/integration/workers": _package("agent/logs/", "agent/workers/"),
    "tests/partitions": _package(*_CORE, "worker/"),
}


def git(*arguments: str) -> str:
    """What git prints.

    Raises:
        subprocess.CalledProcessError: this is no checkout, or git refuses.
    """
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_time() -> int:
    """When the commit was made that is checked out, in seconds since 1970."""
    return int(git("log", "-1", "--format=%ct"))


def changed_paths() -> list[str]:
    """The files that the day of commits up to the one that is checked out has changed."""
    before = f"--before={commit_time() - DAY_S}"
    earlier = git("rev-list", "--first-parent", "-1", before, "HEAD") or _EMPTY
    return git("diff", "--name-only", "--no-renames", earlier, "HEAD").splitlines()


def touched(changed: Iterable[str]) -> list[set[str]]:
    """The test files that a change touches.

    Args:
        changed: paths of files, from the project's root.

    Returns:
        Those that it touches most closely come first: files of tests that have changed, or whose
        folder's scripts have; those that import what has changed, as it is or by a helper or by the
        ``conftest.py`` above them; those of the folders that exercise what has changed.
    """
    changed = [*changed]
    files = test_files()
    folders = {str(Path(file).parent) for file in files}
    homes = {_home(path, folders) for path in changed}
    itself = {file for file in files if file in changed or str(Path(file).parent) in homes}
    reached = importing(changed)
    below = tuple(path.removesuffix("conftest.py") for path in reached if "/conftest.py" in path)
    imports = {file for file in files if file in reached or file.startswith(below)} - itself
    exercises = {file for file in files if exercised(file, changed)} - imports - itself
    return [itself, imports, exercises]


def test_files() -> set[str]:
    """All files of tests, by their paths from the project's root."""
    return {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}


def importing(changed: Iterable[str]) -> set[str]:
    """The modules of the tests that import a changed module, as it is or by other tests' modules.

    What a module of the package imports in its turn does not count: everything would.
    """
    graph = grimp.build_graph("elastic_runtime", "tests", cache_dir=None)
    reached = {module for module in map(_module, changed) if module in graph.modules}
    waiting = [*reached]
    while waiting:
        importers = graph.find_modules_that_directly_import(waiting.pop())
        new = {name for name in importers if name.startswith("tests.")} - reached
        reached |= new
        waiting += new
    return {name.replace(".", "/") + ".py" for name in reached if name.startswith("tests.")}


def exercised(file: str, changed: Iterable[str]) -> bool:
    """Whether what has changed is what a file of tests exercises, as its folder says."""
    folders = map(str, Path(file).parents)
    folder = next((folder for folder in folders if folder in EXERCISES), None)
    return folder is not None and any(path.startswith(EXERCISES[folder]) for path in changed)


def _home(path: str, folders: set[str]) -> str | None:
    """The folder of tests that something belongs to which no test imports: the nearest above it."""
    own, *above = map(str, Path(path).parents)
    if own in folders:
        return None if path.endswith(".py") else own
    return next((folder for folder in above if folder in folders), None)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
