"""With ``fresh_accelerator`` workers and nodes die and come, and the training does not show it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.accelerate.accelerate_job import AccelerateJob
from tests.integration.trainers.scenarios import (
    die_before_a_commit,
    interrupt_evaluations,
    kill_a_node_and_add_one,
    lose_workers,
    restart_in_other_worlds,
    run_on_the_oldest_trainer,
)
from tests.integration.trainers.trainer_job import ONE_NODE

# bfloat16 has 8 bits: a share of a batch is rounded in another way than the whole.
ROUGHLY = 0.02
_GOLDEN = pytest.param("usual", marks=pytest.mark.golden("Accelerate in place"))


@pytest.mark.parametrize("kind", [_GOLDEN, "accumulated"])
def test_a_job_that_loses_workers_and_a_node(tmp_path: Path, kind: str) -> None:
    seconds = 0.25 if kind == "accumulated" else 0.1  # long enough for a node to start
    with AccelerateJob(tmp_path, kind=kind, seconds=seconds) as job:
        if kind == "accumulated":
            kill_a_node_and_add_one(job)
        else:
            die_before_a_commit(job)
            lose_workers(job)
            job.check_ends_of_epochs()


def test_a_job_that_loses_workers_in_bfloat16(tmp_path: Path) -> None:
    with AccelerateJob(tmp_path, *ONE_NODE, kind="bf16") as job:
        lose_workers(job, ROUGHLY)


def test_an_evaluation_that_is_interrupted_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "slow-validation").touch()
    with AccelerateJob(tmp_path, *ONE_NODE, seconds=0.01) as job:
        interrupt_evaluations(job)


def test_a_job_that_is_restarted_in_other_worlds(tmp_path: Path) -> None:
    with AccelerateJob(tmp_path, kind="restarted") as job:
        restart_in_other_worlds(job)


def test_the_oldest_accelerate_that_is_supported(tmp_path: Path) -> None:
    oldest = Path(sys.prefix) / "transformers-5.3"
    assert oldest.is_dir(), "scripts/setup installs it"
    with AccelerateJob(tmp_path, *ONE_NODE, environ={"PYTHONPATH": str(oldest)}) as job:
        run_on_the_oldest_trainer(job)
        assert {note["version"] for note in job.said("ended")} == {"1.10.1"}
