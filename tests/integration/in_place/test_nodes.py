"""Workers and nodes that come and go, and what becomes of those that stay."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import PATIENCE, Job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow("a job of two nodes")
def test_a_node_goes_on_with_fewer_workers_and_fills_up_again(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    environ = {"TMPDIR": str(tmp_path / "tmp")}
    options = ("--nproc-per-node", "3")
    with Job(tmp_path, "steps.py", *options, environ=environ, kind="slow") as job:
        before = job.ranks(3)
        (tmp_path / "slow").touch()  # its replacement is not there before the others go on
        job.order(before[0], "sleep", 600.0)  # the others have sent all that they can send it
        job.kill(before[0])
        fewer = job.ranks(2, after=before[0].round)
        # Those who stay keep their process and their order, and rank 0 is one of them.
        assert [fewer[r].pid for r in (0, 1)] == [before[r].pid for r in (1, 2)]
        full = job.ranks(3, after=fewer[0].round)
        assert [full[r].pid for r in (0, 1)] == [before[r].pid for r in (1, 2)]
        assert full[2].pid not in {note.pid for note in before.values()}
        # Of the one that was killed nothing is left beside its log.
        (private,) = tmp_path.glob("tmp/elastic-agent-*")
        assert len(list(private.glob("progress-*"))) == 3
        job.finish()


@pytest.mark.slow("a node that joins late")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_at_its_minimum_a_job_goes_on_with_a_late_replacement(number: int, tmp_path: Path) -> None:
    """The others begin no round without it, and so the lost one is still a member of the last."""
    options = ("--local-nodes", "2", "--min", "2", "--max", "2", "--lease-ttl", "2")
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(2)
        os.kill(job.nodes()[before[1].node], number)
        job.event("job.waiting", have=1, minimum=2)
        joined = job.join()
        both = job.ranks(2, after=before[0].round)
        assert both[0].pid == before[0].pid
        job.enough()
        assert joined.wait(PATIENCE) == 0
        assert job.end() == 0
        job.check()
