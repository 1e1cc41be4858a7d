"""Under ``ElasticStrategy`` workers and nodes die and come, and the training does not show it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.integration.lightning.lightning_job import LightningJob
from tests.integration.trainers.scenarios import (
    die_before_a_commit,
    end_early_and_go_on,
    interrupt_evaluations,
    kill_a_node_and_add_one,
    lose_workers_and_a_node,
)
from tests.integration.trainers.trainer_job import TWO

# bfloat16 has 8 bits: a share of a batch is rounded in another way than the whole.
ROUGHLY = 0.02
_GOLDEN = pytest.param("usual", marks=pytest.mark.golden("Lightning in place"))


@pytest.mark.parametrize(
    "kind",
    [
        _GOLDEN,
        "accumulated",
        "manual",
        "often",
        "scaled",
        "growing",
        "averaged",
        "accumulated-by-hand",
    ],
)
def test_a_job_that_loses_workers_and_a_node(tmp_path: Path, kind: str) -> None:
    with LightningJob(tmp_path, kind=kind) as job:
        lose_workers_and_a_node(job, ROUGHLY if kind in ("often", "scaled") else 1e-5)
        if kind == "usual":
            job.check_ends_of_epochs()


@pytest.mark.parametrize("kind", ["usual", "averaged"])
def test_a_validation_that_is_interrupted_is_done_again(tmp_path: Path, kind: str) -> None:
    # With an average of the weights in the model's place, while it is validated.
    (tmp_path / "slow-validation").touch()
    with LightningJob(tmp_path, kind=kind, seconds=0.01) as job:
        interrupt_evaluations(job)
        assert all(note["training"] is False for note in job.said("validated"))


def test_a_fault_between_the_optimizer_and_the_commit(tmp_path: Path) -> None:
    with LightningJob(tmp_path, kind="usual", seconds=0.01) as job:
        die_before_a_commit(job)


@pytest.mark.parametrize("kind", ["usual", "often"])
def test_the_oldest_lightning_that_is_supported(tmp_path: Path, kind: str) -> None:
    oldest = Path(sys.prefix) / "lightning-2.5"
    assert oldest.is_dir(), "scripts/setup installs it"
    found = tmp_path / "job"
    found.mkdir()
    with LightningJob(found, kind=kind, environ={"PYTHONPATH": str(oldest)}) as job:
        before = job.ranks(2)
        job.kill(before[0])
        job.ranks(2, after=before[0].round)
        job.finish_exactly(ROUGHLY)
        job.check_ends_of_epochs()
        versions = {note["lightning"][:4] for note in job.said("ended")}
        assert versions == {"2.5."}


def test_a_sigterm_to_one_worker_holds_nobody_up(tmp_path: Path) -> None:
    # With Lightning's own handler both ranks stood still for ever.
    with LightningJob(tmp_path, kind="usual") as job:
        before = job.ranks(2)
        job.kill(before[1], number=signal.SIGTERM)
        after = job.ranks(2, after=before[0].round)
        assert after[0].pid == before[0].pid
        job.finish_exactly()


def test_a_job_that_ended_in_the_middle_of_an_epoch_goes_on_there(tmp_path: Path) -> None:
    end_early_and_go_on(LightningJob, tmp_path, 30, 50)


def test_a_node_that_would_compute_another_schedule_takes_the_jobs(tmp_path: Path) -> None:
    # Its number of nodes is another one, as where it is read from the environment.
    with LightningJob(tmp_path, *TWO, kind="often") as job:
        before = job.ranks(2)
        (tmp_path / "nodes").write_text("1")  # for processes that start from now on
        job.kill(before[1])
        job.ranks(2, after=before[0].round)
        job.finish_exactly(ROUGHLY)
        totals = {note["total"] for note in job.said("scheduled")}
        assert len(totals) == 1, totals


def test_a_node_is_killed_and_another_one_joins(tmp_path: Path) -> None:
    with LightningJob(tmp_path, kind="usual") as job:
        kill_a_node_and_add_one(job)
