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


@pytest.mark.timeout(240)
def test_no_signal_ends_a_worker_before_its_agent_has_asked_it(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=2", steps=9999) as job:
        job.wait_for_steps(2)
        slurm.call("scancel", "--signal=USR1", job.id)  # as ahead of the limit
        job.wait_for_restart()
        job.wait_for_steps(2)
        assert "killed" not in job.output()
        slurm.call("scancel", job.id)
        job.ends("CANCELLED", restarts=1)
        assert job.fields()["ExitCode"] == "5:0", job.output()
        job.check_saved()
        job.check_steps(job.noted("steps")[-1][0])
