"""What follows a step under ``ElasticTrainer``: evaluations and logs, with faults and without."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.integration.trainers.scenarios import interrupt_evaluations
from tests.integration.trainers.trainer_job import ONE_NODE
from tests.integration.transformers.hf_job import HuggingFaceJob

if TYPE_CHECKING:
    from pathlib import Path


def test_an_evaluation_that_is_interrupted_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "slow-validation").touch()
    with HuggingFaceJob(tmp_path, *ONE_NODE, seconds=0.02) as job:
        interrupt_evaluations(job)
        for end in job.said("ended"):
            steps = [step for step, _ in end["logged"]]
            assert steps == list(range(5, end["step"] + 1, 5)), "logs twice, or not at all"


def test_a_fault_right_after_an_evaluation(tmp_path: Path) -> None:
    # A newcomer and a survivor begin the next round together, and evaluate together.
    options = ("--local-nodes", "2", "--min", "2", "--max-restarts", "100")
    with HuggingFaceJob(tmp_path, *options, kind="often", seconds=0.1) as job:
        job.ranks(2)
        for number in range(2):
            seen = len(job.said("validated"))
            job.wait(lambda seen=seen: len(job.said("validated")) > seen + 1, "an evaluation")
            found = job.said("validated")[-1]
            both = {note["rank"]: note["pid"] for note in job.said("validated")[-2:]}
            os.kill(both[number % 2], signal.SIGKILL)
            job.ranks(2, after=found["round"])
        job.finish_exactly(0.02)  # in bfloat16
        validated = {note["step"] for note in job.said("validated")}
        assert validated == {*range(7, job.said("ended")[0]["step"] + 1, 7)}
