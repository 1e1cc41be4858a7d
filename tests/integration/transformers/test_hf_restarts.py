"""Jobs under ``ElasticTrainer`` that start again: after faults, and after their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.trainers.scenarios import end_early_and_go_on, restart_in_other_worlds
from tests.integration.transformers.hf_job import HuggingFaceJob

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_is_restarted_in_other_worlds(tmp_path: Path) -> None:
    with HuggingFaceJob(tmp_path, kind="restarted") as job:
        restart_in_other_worlds(job)


def test_a_job_that_ended_in_the_middle_of_an_epoch_goes_on_there(tmp_path: Path) -> None:
    end_early_and_go_on(HuggingFaceJob, tmp_path, 30, 30, 50)
