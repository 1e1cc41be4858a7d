"""Where Slurm signals every process of a step, workers included (proctrack/linuxproc)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.slurm.slurm_job import SlurmJob

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm_cluster import SlurmCluster


@pytest.fixture(scope="module")
def proctrack() -> str:
    return "linuxproc"


def test_a_signal_ahead_of_the_limit_ends_no_worker(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=2", steps=60) as job:
        job.wait_for_steps(2)
        slurm.call("scancel", "--signal=USR1", job.id)
        job.wait(lambda: job.fields().get("Restarts") == "1", "another start")
        ended = job.wait_for_end()
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.output()
        job.check_steps(60)
        assert "killed" not in job.output()


def test_no_worker_ends_before_its_agent_has_asked_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=2", steps=9999) as job:
        job.wait_for_steps(2)
        slurm.call("scancel", job.id)
        ended = job.wait_for_end()
        assert (ended["JobState"], ended["ExitCode"]) == ("CANCELLED", "5:0"), job.output()
        last = job.noted("steps")[-1][0]
        assert f"step {last} is saved" in job.output()
