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
    lose_workers,
    replace_a_worker,
    run_on_the_oldest_trainer,
)
from tests.integration.trainers.trainer_job import ONE_NODE

# bfloat16 has 8 bits: a share of a batch is rounded in another way than the whole.
ROUGHLY = 0.02
_GOLDEN = pytest.param("usual", marks=pytest.mark.golden("Lightning in place"))


@pytest.mark.parametrize(
    "kind", [_GOLDEN, "accumulated", "manual", "growing", "accumulated-by-hand"]
)
def test_a_job_that_loses_workers_and_a_node(tmp_path: Path, kind: str) -> None:
    seconds = 0.25 if kind == "manual" else 0.1  # long enough for a node to start
    with LightningJob(tmp_path, kind=kind, seconds=seconds) as job:
        if kind == "manual":
            kill_a_node_and_add_one(job)
            return
        if kind == "usual":
            die_before_a_commit(job)
        # With Lightning's own handler of SIGTERM both ranks stood still for ever.
        lose_workers(job, second=signal.SIGTERM)
        if kind == "usual":
            job.check_ends_of_epochs()


@pytest.mark.parametrize("kind", ["often", "scaled"])
def test_a_job_that_loses_workers(tmp_path: Path, kind: str) -> None:
    with LightningJob(tmp_path, *ONE_NODE, kind=kind) as job:
        job.ranks(2)
        # As where it is read from the environment: with this number of nodes a process that starts
        # from now on would compute another schedule, and takes the job's.
        (tmp_path / "nodes").write_text("1")
        lose_workers(job, ROUGHLY)
        if kind == "often":
            assert len({note["total"] for note in job.said("scheduled")}) == 1


def test_a_validation_that_is_interrupted_is_done_again(tmp_path: Path) -> None:
    # With an average of the weights in the model's place, while it is validated.
    (tmp_path / "slow-validation").touch()
    with LightningJob(tmp_path, *ONE_NODE, kind="averaged", seconds=0.02) as job:
        replace_a_worker(job, 0)
        interrupt_evaluations(job)
        assert all(note["training"] is False for note in job.said("validated"))


@pytest.mark.parametrize("kind", ["usual", "often"])
def test_the_oldest_lightning_that_is_supported(tmp_path: Path, kind: str) -> None:
    oldest = Path(sys.prefix) / "lightning-2.5"
    assert oldest.is_dir(), "scripts/setup installs it"
    found = tmp_path / "job"
    found.mkdir()
    with LightningJob(found, *ONE_NODE, kind=kind, environ={"PYTHONPATH": str(oldest)}) as job:
        run_on_the_oldest_trainer(job, ROUGHLY)
        versions = {note["lightning"][:4] for note in job.said("ended")}
        assert versions == {"2.5."}


def test_a_job_that_ended_in_the_middle_of_an_epoch_goes_on_there(tmp_path: Path) -> None:
    end_early_and_go_on(LightningJob, tmp_path, 30, 50)
