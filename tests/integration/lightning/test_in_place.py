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
    run_on_the_oldest_trainer,
)
from tests.integration.trainers.trainer_job import ONE_NODE, TOLERANCE

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
    seconds = 0.25 if kind == "manual" else 0.1  # long enough for a node to start
    with LightningJob(tmp_path, kind=kind, seconds=seconds) as job:
        if kind == "usual":
            die_before_a_commit(job)
        elif kind == "often":
            # As where its number is read from the environment: a node that starts from now on
            # would compute another schedule, and takes the job's.
            job.ranks(2)
            (tmp_path / "nodes").write_text("1")
        elif kind == "manual":
            kill_a_node_and_add_one(job)
            return
        # With Lightning's own handler of SIGTERM both ranks stood still for ever.
        tolerance = ROUGHLY if kind in ("often", "scaled") else TOLERANCE
        lose_workers_and_a_node(job, tolerance, second=signal.SIGTERM)
        if kind == "usual":
            job.check_ends_of_epochs()
        elif kind == "often":
            assert len({note["total"] for note in job.said("scheduled")}) == 1


def test_a_validation_that_is_interrupted_is_done_again(tmp_path: Path) -> None:
    # With an average of the weights in the model's place, while it is validated.
    (tmp_path / "slow-validation").touch()
    with LightningJob(tmp_path, *ONE_NODE, kind="averaged", seconds=0.02) as job:
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
