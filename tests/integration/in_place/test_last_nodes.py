"""All nodes are asked to leave, but not at the same moment: the step that they hold is saved."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_LEFT
from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


FAULTS = ("worker.killed", "worker.failed", "worker.stuck", "fault.retry")


def check_saved(job: Job, *wanted: str) -> None:
    """It ends, and nothing that was trained is lost; what fails is only what the test wanted."""
    assert job.end() == EXIT_LEFT, job.story()
    saved = max(event["step"] for event in job.events("checkpoint.saved"))
    # The last commit of a rank does not return, and so its step is not noted.
    assert 0 <= saved - job.step <= 1, job.story()
    for name in FAULTS:
        assert bool(job.events(name)) == (name in wanted), job.story()


@pytest.mark.parametrize("fewest", ["1", "3"])
def test_the_others_are_asked_when_their_ranks_have_left_the_round(
    fewest: str, tmp_path: Path
) -> None:
    """At ``--min 3`` there is no further round in which they could save together."""
    options = ("--local-nodes", "3", "--min", fewest)
    with Job(tmp_path, "steps.py", *options, kind="saved", seconds=0.05) as job:
        job.ranks(3)
        nodes = job.nodes()
        first, others = nodes["node2"], [nodes["node0"], nodes["node1"]]
        processes.send(others, signal.SIGSTOP)  # these agents hear all of it at once
        processes.send([first], signal.SIGTERM)
        job.event("round.left", node="node2")
        processes.send(others, signal.SIGTERM)
        processes.send(others, signal.SIGCONT)
        check_saved(job)


@pytest.mark.parametrize(("victim", "fewest"), [(0, "1"), (2, "3")])
def test_a_worker_dies_when_all_have_been_asked(victim: int, fewest: str, tmp_path: Path) -> None:
    """It does before there is a step at which they could save: the others save what they hold."""
    options = ("--local-nodes", "3", "--min", fewest)
    with Job(tmp_path, "steps.py", *options, kind="saved", seconds=0.05) as job:
        worker = job.ranks(3)[victim]
        job.order(worker, "sleep", 600.0)  # nobody comes to the end of this step
        processes.send(list(job.nodes().values()), signal.SIGTERM)
        job.wait(lambda: len(job.events("node.leaving")) == 3, "all nodes have been asked")
        job.kill(worker)
        check_saved(job, "worker.killed")
