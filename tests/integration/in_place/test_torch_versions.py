"""Nodes that have another torch, or regroup in another way, than the job in place."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
import torch

from elastic_runtime.errors import EXIT_USAGE
from elastic_runtime.system.torch_version import NEWEST, OLDEST, installed, read_version
from tests.integration.in_place.job import Job
from tests.integration.in_place.test_lives import where

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd


def _other_torch(folder: Path) -> tuple[str, dict[str, str]]:
    """What makes a node say, and believe, that it has another torch than this one.

    Returns:
        That version, and the environment of the node.
    """
    version = ".".join(map(str, OLDEST if read_version(installed()) == NEWEST else NEWEST)) + ".7"
    described = folder / "other" / f"torch-{version}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    points = metadata.distribution("torch").read_text("entry_points.txt")
    (described / "entry_points.txt").write_text(points or "")  # torch 2.15 finds gloo by them
    path = os.pathsep.join(filter(None, (str(described.parent), os.environ.get("PYTHONPATH"))))
    return version, {"PYTHONPATH": path}


@pytest.mark.parametrize("together", [False, True])
def test_a_node_with_another_torch_is_refused_and_the_job_goes_on(
    tmp_path: Path, etcd: EtcdServer, together: bool
) -> None:
    version, environ = _other_torch(tmp_path)
    last_call = "10" if together else "0"
    options = (*where(tmp_path, etcd), "--min", "1", "--max", "2")
    options += ("--regroup", "rebuild", "--last-call", last_call)
    first, second = tmp_path / "first", tmp_path / "second"
    with Job(first, "steps.py", *options, "--node-name", "a") as one:
        if together:
            one.event("job.waiting", have=1)
        else:
            one.ranks(1)
            chosen = one.event("regroup.chosen")
            assert (chosen["how"], chosen["torch"]) == ("rebuild", torch.__version__)
        with Job(second, "steps.py", *options, "--node-name", "b", environ=environ) as two:
            assert two.end() == EXIT_USAGE, two.story()
            assert f"this node has torch {version}, and the leader of the job, a, torch" in two.log
            assert installed() in two.log
            assert "install the same one on all nodes" in two.log
            assert "Traceback" not in two.log, two.log
        one.ranks(1)
        one.end_well()
        assert len(one.events("regroup.chosen")) == 1


@pytest.mark.skipif(
    (read_version(installed()) or NEWEST) >= NEWEST, reason="this torch can reconfigure its groups"
)
def test_a_torch_that_cannot_reconfigure_is_refused_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", "--regroup", "reconfigure") as job:
        assert job.end() == EXIT_USAGE, job.story()
        assert f"needs torch 2.15 or newer, and here is {installed()}" in job.log
        assert len(job.log.splitlines()) == 1, job.log
