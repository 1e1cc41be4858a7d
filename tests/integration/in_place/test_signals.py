"""Signals to whole trees of processes, as Slurm and container runtimes send them."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_LEFT
from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.users_start

_TWO_NODES, _ONE_NODE = ("--local-nodes", "2", "--min", "2"), ("--nproc-per-node", "2")


def all_twice(job: Job) -> None:
    """SIGTERM to every process of the job, agents and workers and what is between them, twice."""
    processes.send(processes.marked(job.mark), signal.SIGTERM)
    time.sleep(0.1)  # what Slurm leaves between its two
    processes.send(processes.marked(job.mark), signal.SIGTERM)


@pytest.mark.parametrize(("script", "options"), [("steps.py", _TWO_NODES), ("plain.py", _ONE_NODE)])
def test_a_job_whose_processes_all_get_sigterm_saves_a_common_step(
    script: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    with Job(tmp_path, script, *options, kind="saved", seconds=0.2) as job:
        job.ranks(2)
        all_twice(job)
        assert job.end() == EXIT_LEFT, job.story()
        # In place the last commit does not return, and so its step is not noted.
        saved = job.events("checkpoint.saved")[-1]["step"]
        assert 0 <= saved - job.step <= 1, job.story()
        for name in ("worker.killed", "worker.failed", "worker.stuck", "fault.retry"):
            assert not job.events(name), job.story()


@pytest.mark.golden("in place: SIGTERM to all processes of a node")
def test_the_others_go_on_when_all_processes_of_one_node_get_sigterm(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", "--local-nodes", "2", "--min", "1", seconds=0.1) as job:
        first = job.ranks(2)
        job.kill(first[1], number=signal.SIGTERM)  # which ends a worker alone
        assert "SIGTERM" in job.event("worker.killed")["reason"]
        before = job.ranks(2, after=first[0].round)
        node = job.nodes()[before[1].node]
        tree = [pid for pid in processes.marked(job.mark) if node in processes.ancestors(pid)]
        assert before[1].pid in tree
        processes.send(tree, signal.SIGTERM)
        processes.send(tree, signal.SIGTERM)
        after = job.ranks(1, after=before[0].round)
        assert after[0].pid == before[0].pid
        assert len(job.events("worker.killed")) == 1, job.story()
        assert not job.events("fault.retry"), job.story()
        job.finish()


def test_a_plain_script_dies_of_the_signal_and_has_not_failed(tmp_path: Path) -> None:
    with Job(tmp_path, "plain.py", *_ONE_NODE, seconds=0.2) as job:
        job.ranks(2)
        all_twice(job)
        assert job.end() == EXIT_LEFT, job.story()
        assert not job.events("fault.retry"), job.story()
        assert not job.events("worker.failed"), job.story()
