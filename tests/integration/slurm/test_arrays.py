"""Jobs under Slurm that are an array, each element a node, with a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.integration.slurm.slurm_job import SlurmJob
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer
    from tests.slurm_cluster import SlurmCluster


def test_elements_come_and_go(slurm: SlurmCluster, etcd: EtcdServer, tmp_path: Path) -> None:
    endpoint = f"--rdzv-endpoint=etcd://{etcd.endpoint}/{tmp_path.name}"
    # More elements than ever run: the last one is queued when the others are done.
    with SlurmJob(slurm, tmp_path, "--array=0-4%3", endpoint, steps=9999) as job:
        job.wait_for_steps(3)
        said = job.elasticctl("scale", "--slurm", job.id, "4")
        assert said == f"array {job.id}: at most 4 of its elements run at a time"
        job.wait_for_steps(4)
        # A job of higher priority takes two nodes: two elements leave, and come back.
        slurm.call("srun", "--partition=high", "--nodes=2", "true")
        job.wait_for_steps(2, more=1)
        job.wait_for_steps(4)
        said = job.elasticctl("scale", "--slurm", job.id, "2")
        asked = said.partition("asked to leave: ")[2].split(",")
        assert len(asked) == 2, said  # which ones ran depends on what was queued again when
        job.wait_for_steps(2)
        assert "2 running" in job.elasticctl("status", "--slurm", job.id)
        job.enough()
        ends = {index: job.wait_for_end(f"{job.id}_{index}")["JobState"] for index in range(5)}
        assert set(ends.values()) == {"COMPLETED", "CANCELLED"}, (ends, job.output())
        assert [*ends.values()].count("COMPLETED") >= 2, (ends, job.output())
        # One that Slurm starts all the same has nothing to do.
        steps, began = len(job.noted("steps")), len(job.noted("begins"))
        late = _element(slurm, job.id, "--slurm=array", endpoint, *job.words)
        assert late.returncode == 0, late.stderr
        assert "the job is done; this node was in no round of it" in late.stderr
        assert (len(job.noted("steps")), len(job.noted("begins"))) == (steps, began)


def _element(slurm: SlurmCluster, array: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What an element of an array comes to."""
    task = {
        **{"SLURM_JOB_ID": "99", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "x"},
        **{"SLURM_STEP_NODELIST": "n0", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n0"},
        **{"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "5"},
    }
    return subprocess.run(
        [sys.executable, "-m", "elastic_runtime", *arguments],
        env={**slurm.environ, **task},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )
