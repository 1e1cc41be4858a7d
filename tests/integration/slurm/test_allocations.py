"""Jobs under Slurm that are one allocation, with a real Slurm."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.slurm.slurm_job import COUNTS, SlurmJob
from tests.slurm_cluster import REQUEUE_EXIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer
    from tests.slurm_cluster import SlurmCluster


@pytest.mark.golden("Slurm: a node is killed")
def test_a_killed_agent_does_not_make_the_job_fail(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=4", steps=150) as job:
        job.wait_for_steps(4)
        seen = job.elasticctl("status", "--slurm", job.id, "--format", "json")
        assert (json.loads(seen)["run_id"], job.elasticctl("events", "--slurm", job.id) != "") == (
            f"slurm-{job.id}",
            True,
        )
        job.signal_agent("n1", signal.SIGKILL)
        job.wait_for_steps(3)
        # Slurm keeps the first nodes of an allocation that is made smaller, and kills the others.
        slurm.call("scontrol", "update", f"jobid={job.id}", "NumNodes=3")
        job.wait_for_steps(2)
        ended = job.wait_for_end()
        assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.output()
        job.check_steps(150)
        assert "srun has ended with 137, but the job is done" in job.output()


@pytest.mark.timeout(240)
def test_a_job_that_is_asked_to_leave_comes_back_and_a_cancelled_one_does_not(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=2", steps=9999) as job:
        job.wait_for_steps(2)
        slurm.call("scancel", "--signal", "USR2", job.id)
        job.wait_for_restart()
        job.wait_for_steps(2)
        slurm.call("scancel", job.id)
        job.ends("CANCELLED", restarts=1)
        job.check_saved()
        job.check_steps(job.noted("steps")[-1][0])
        assert "is COMPLETING (cancelled, out of time" in job.output()


_SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --no-kill --open-mode=append --output=slurm-%j.out
srun --no-kill --kill-on-bad-exit=0 {elastic_run}
"""


def test_a_script_of_ones_own_and_a_site_that_queues_again_by_exit_code(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Nobody hosts the store but the first node, and nothing is asked of Slurm."""
    code = f"--leave-code={REQUEUE_EXIT}"
    with SlurmJob(slurm, tmp_path, code, steps=60, script=_SCRIPT) as job:
        job.wait_for_steps(2)
        slurm.call("scancel", "--signal=USR1", job.id)
        job.ends("COMPLETED", restarts=1)
        job.check_steps(60)


_STEPS = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --no-kill --output=slurm-%j.out
for node in $(scontrol show hostnames); do
    srun --nodes=1 --ntasks=1 --nodelist=$node {elastic_run} &
done
wait
"""


def test_of_a_step_for_each_node_one_is_ended(
    slurm: SlurmCluster, etcd: EtcdServer, tmp_path: Path
) -> None:
    """They are one job as they are told the same run."""
    run = ("--max=2", "--run-id=r7", f"--rdzv-endpoint=etcd://{etcd.endpoint}/{tmp_path.name}")
    with SlurmJob(slurm, tmp_path, *run, steps=9999, script=_STEPS) as job:
        job.wait_for_steps(2)
        # It does what it is told, and then says that there is no such step.
        slurm.call("scancel", "--signal=TERM", f"{job.id}.1", check=False)
        job.wait_for_steps(1)
        job.enough()
        assert job.wait_for_end()["JobState"] == "COMPLETED", job.output()
        job.check_steps(job.noted("steps")[-1][0])


def test_two_tasks_a_node_are_refused(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    elastic_run = f"{sys.executable} -m elastic_runtime"
    script.write_text(f"#!/bin/bash\nsrun -n2 {elastic_run} --cold {COUNTS} {tmp_path} 3\n")
    out = tmp_path / "out"
    number = slurm.call(
        "sbatch", "--parsable", "--wait", "-N1", f"--output={out}", str(script), check=False
    )
    assert slurm.job(number.strip())["ExitCode"] == "2:0"
    assert "srun has started 2 tasks on n" in out.read_text()
    assert "Traceback" not in out.read_text()


def test_a_node_that_dies_takes_no_other_along(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=3", steps=80) as job:
        job.wait_for_steps(3)
        slurm.kill_steps("n2")
        try:
            job.wait_for_steps(2)
            job.ends("COMPLETED")
            job.check_steps(80)
        finally:
            slurm.start_node("n2")
            slurm.wait_until_idle()


def test_a_node_that_hangs_does_not_keep_a_job_that_leaves(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """It would stay until its time limit, and nobody would ask for the requeue."""
    with SlurmJob(slurm, tmp_path, "--nodes=3", steps=120) as job:
        job.wait_for_steps(3)
        job.signal_agent("n2", signal.SIGSTOP)
        job.wait_for_steps(2)
        slurm.call("scancel", "--signal=USR1", job.id)
        job.ends("COMPLETED", restarts=1)
        assert "all nodes have ended or left" in job.output()
        job.check_steps(120)


def test_who_was_stopped_for_a_while_does_not_begin_a_job_again_that_is_done(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The nodes have moved the store to one of them by then, with which it ends."""
    with SlurmJob(slurm, tmp_path, "--nodes=3", steps=9999) as job:
        job.wait_for_steps(3)
        job.signal_batch(signal.SIGSTOP)
        job.wait_for_steps(3, more=120)  # of 0.1 s
        job.signal_batch(signal.SIGCONT)
        job.wait(lambda: "the store has lost its data" in job.output(), "another store")
        job.signal_agent("n2", signal.SIGKILL)
        job.wait_for_steps(2)
        job.enough()
        job.ends("COMPLETED")


def test_at_its_time_limit_a_job_saves(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=2", "--time=1", "--signal=", steps=9999) as job:
        job.wait_for_steps(2)
        job.ends("TIMEOUT")
        job.check_saved()


def test_a_job_that_is_preempted_comes_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmJob(slurm, tmp_path, "--nodes=3", "--sbatch=--partition=low", steps=60) as job:
        job.wait_for_steps(3)
        slurm.call("srun", "--partition=high", "--nodes=4", "true")
        job.ends("COMPLETED", restarts=1)
        job.check_steps(60)
