"""Under ``ElasticTrainer`` workers and nodes die and come, and the training does not show it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.trainers.scenarios import (
    die_before_a_commit,
    kill_a_node_and_add_one,
    lose_workers,
    run_on_the_oldest_trainer,
)
from tests.integration.trainers.trainer_job import ONE_NODE
from tests.integration.transformers.hf_job import HuggingFaceJob

_GOLDEN = pytest.param("usual", marks=pytest.mark.golden("Hugging Face in place"))


@pytest.mark.parametrize("kind", [_GOLDEN, "accumulated", "smoothed"])
def test_a_job_that_loses_workers_and_a_node(tmp_path: Path, kind: str) -> None:
    seconds = 0.25 if kind == "smoothed" else 0.1  # long enough for a node to start
    with HuggingFaceJob(tmp_path, kind=kind, seconds=seconds) as job:
        if kind == "smoothed":
            kill_a_node_and_add_one(job)
        elif kind == "usual":
            die_before_a_commit(job)
            lose_workers(job)
            check_logs(job)
        else:
            lose_workers(job)
        if kind != "accumulated":
            job.check_ends_of_epochs()


@pytest.mark.parametrize("kind", ["classified", "causal", "sft"])
def test_a_job_that_loses_workers(tmp_path: Path, kind: str) -> None:
    with HuggingFaceJob(tmp_path, *ONE_NODE, kind=kind) as job:
        lose_workers(job)
        if kind != "sft":
            job.check_ends_of_epochs()
            check_logs(job)


def check_logs(job: HuggingFaceJob) -> None:
    """They do not depend on the workers, but for the mean of some steps with a fault among them."""
    whole = job.undisturbed()[-1]
    rounds = {note.round for note in job.steps()}
    for ended in job.said("ended"):
        assert len(ended["logged"]) == len(whole["logged"]) > 45
        pairs = zip(ended["logged"], whole["logged"], strict=True)
        apart = [(one, other) for one, other in pairs if one != pytest.approx(other, rel=1e-3)]
        assert len(apart) < len(rounds), apart
        # An evaluation's loss is a mean of batches, as the Trainer has it.
        assert ended["evaluated"] == pytest.approx(whole["evaluated"], rel=0.1)


@pytest.mark.parametrize("kind", ["smoothed", "usual"])
def test_the_oldest_transformers_that_is_supported(tmp_path: Path, kind: str) -> None:
    oldest = Path(sys.prefix) / "transformers-5.3"
    assert oldest.is_dir(), "scripts/setup installs it"
    environ = {"PYTHONPATH": str(oldest)}
    with HuggingFaceJob(tmp_path, *ONE_NODE, kind=kind, environ=environ) as job:
        run_on_the_oldest_trainer(job)
        assert {note["version"] for note in job.said("ended")} == {"5.3.0"}
