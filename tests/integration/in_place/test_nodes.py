"""Workers and nodes that come and go, and what becomes of those that stay."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_LEFT
from tests import processes
from tests.integration.in_place.job import PATIENCE, Job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.golden("in place: one of several workers of a node dies")
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


def test_at_its_minimum_a_job_goes_on_with_a_late_replacement(tmp_path: Path) -> None:
    """The others begin no round without it, and so the lost one is still a member of the last."""
    options = ("--local-nodes", "2", "--min", "2", "--max", "2", "--lease-ttl", "2")
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(2)
        agent, joined = job.nodes()[before[1].node], []
        for number in (signal.SIGKILL, signal.SIGTERM):
            left = len(job.events("round.left"))
            os.kill(agent, number)
            job.wait(lambda n=left: len(job.events("round.left")) > n, "the loss is noticed")
            job.event("job.waiting", have=1, minimum=2)
            joined.append(job.join())
            agent = joined[-1].pid
            both = job.ranks(2, after=before[0].round)
            assert both[0].pid == before[0].pid
            before = both
        job.enough()
        assert [node.wait(PATIENCE) for node in joined] == [EXIT_LEFT, 0]
        assert job.end() == 0
        job.check()


def test_a_node_that_comes_after_the_training_does_not_disturb_what_follows(tmp_path: Path) -> None:
    """It would be alone with the job: nothing is saved, and the others have left ``train``."""
    options = ("--local-nodes", "1", "--min", "1", "--max", "2")
    with Job(tmp_path, "steps.py", *options, kind="exports") as job:
        job.ranks(1)
        job.enough()
        job.wait(lambda: job.said("exports"), "train has returned")
        joined = job.join()
        late = tmp_path / "joined"
        job.wait(lambda: "no node is admitted any more" in late.read_text(), "it is there")
        with pytest.raises(processes.Overdue):  # others would be asked to let it in at once
            processes.wait_for(lambda: job.events("round.left"), 3.0, "they are disturbed")
        (tmp_path / "exported").touch()
        assert joined.wait(PATIENCE) == 0, late.read_text()
        assert job.end() == 0
        assert len(job.said("exports")) == 1
        job.check()
