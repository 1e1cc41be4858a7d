"""Under ``ElasticTrainer`` workers and nodes die and come, and the training does not show it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.transformers.hf_job import HuggingFaceJob

if TYPE_CHECKING:
    from pathlib import Path

# bfloat16 has 8 bits: a share of a batch is rounded in another way than the whole.
ROUGHLY = 0.02


@pytest.mark.first_case("a job of two nodes for each")
@pytest.mark.parametrize("kind", ["usual", "accumulated", "causal", "smoothed", "often"])
def test_a_job_that_loses_workers_and_a_node(tmp_path: Path, kind: str) -> None:
    with HuggingFaceJob(tmp_path, kind=kind) as job:
        before = job.ranks(2)
        job.kill(before[0])  # which has the progress bar, and writes the Trainer's own checkpoints
        alone = job.ranks(1, after=before[0].round, more=1)
        assert alone[0].pid == before[1].pid, "the survivor was restarted"
        both = job.ranks(2, after=alone[0].round)
        job.kill(both[1])
        both = job.ranks(2, after=both[0].round)
        nodes = job.nodes()
        # Its node leaves in the planned way; the other one goes on alone.
        leaver = both[1].node
        os.kill(nodes[leaver], signal.SIGTERM)
        alone = job.ranks(1, after=both[0].round)
        assert alone[0].pid == both[0].pid
        job.finish_exactly(ROUGHLY if kind == "often" else 1e-5)
        if kind not in ("accumulated", "often"):  # which have another number of steps, or no ends
            job.check_ends_of_epochs()


def test_an_evaluation_that_is_interrupted_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "slow-validation").touch()
    with HuggingFaceJob(tmp_path, kind="usual", seconds=0.01) as job:
        for number in range(3):
            seen = len(job.said("validating"))
            job.wait(lambda seen=seen: len(job.said("validating")) > seen + 4, "an evaluation")
            found = job.said("validating")[-1]
            rank = number % 2
            notes = [n for n in job.said("validating") if n["round"] == found["round"]]
            pids = {note["rank"]: note["pid"] for note in notes}
            if rank in pids:
                os.kill(pids[rank], signal.SIGKILL)
            job.ranks(2, after=found["round"])
        (tmp_path / "slow-validation").unlink()
        job.finish_exactly()
        job.check_ends_of_epochs()
        for end in job.said("ended"):
            assert end["logged"] == list(range(5, end["step"] + 1, 5)), "logs twice, or not at all"


def test_a_fault_between_the_optimizer_and_the_commit(tmp_path: Path) -> None:
    # In the last step of an epoch: its end must follow all the same.
    with HuggingFaceJob(tmp_path, kind="usual", seconds=0.01) as job:
        before = job.ranks(2)
        (tmp_path / "die-in-hook").touch()
        job.wait(lambda: job.said("died"), "the end of rank 1")
        job.ranks(2, after=before[0].round)
        job.finish_exactly()
        job.check_ends_of_epochs()
        step = job.said("died")[0]["step"]
        assert not job.events("state.unfit")
        assert step in {note["step"] for note in job.said("validated")}


@pytest.mark.slow("a job of two nodes that starts again three times")
def test_a_job_that_is_restarted_in_other_worlds(tmp_path: Path) -> None:
    with HuggingFaceJob(tmp_path, kind="restarted") as job:
        before = job.ranks(2, more=12)
        job.kill(before[0])
        both = job.ranks(2, after=before[0].round)
        os.kill(job.nodes()[both[1].node], signal.SIGTERM)
        job.ranks(1, after=both[0].round)
        job.finish_restarted()
