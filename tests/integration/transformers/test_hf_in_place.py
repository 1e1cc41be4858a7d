"""Under ``ElasticTrainer`` workers and nodes die and come, and the training does not show it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.integration.in_place.job import ENVIRONMENT, PATIENCE
from tests.integration.lightning.trainer_job import TWO, undisturbed
from tests.integration.transformers.hf_job import HuggingFaceJob

# bfloat16 has 8 bits: a share of a batch is rounded in another way than the whole.
ROUGHLY = 0.02


@pytest.mark.first_case("a job of two nodes for each")
@pytest.mark.parametrize(
    "kind", ["usual", "classified", "accumulated", "causal", "smoothed", "often", "sft"]
)
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
        if kind not in (
            "accumulated",
            "often",
            "sft",
        ):
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
        job.finish_exactly(ROUGHLY)
        validated = {note["step"] for note in job.said("validated")}
        assert validated == {*range(7, job.said("ended")[0]["step"] + 1, 7)}


@pytest.mark.slow("a job, and the same without an agent, for each")
@pytest.mark.parametrize("kind", ["usual", "classified", "causal"])
def test_logs_do_not_depend_on_the_workers(tmp_path: Path, kind: str) -> None:
    (tmp_path / "enough").touch()
    with HuggingFaceJob(tmp_path, kind=kind) as job:
        assert job.end() == 0, job.story()
        ended = job.said("ended")[0]
    whole = undisturbed(tmp_path, kind, script=job.script)
    assert ended["size"] == 2
    assert len(ended["logged"]) == len(whole["logged"]) > 90
    for one, other in zip(ended["logged"], whole["logged"], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    # An evaluation's loss is a mean of batches, as the Trainer has it.
    assert ended["evaluated"] == pytest.approx(whole["evaluated"], rel=0.1)


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


@pytest.mark.first_case("a job of two nodes for each")
@pytest.mark.parametrize("kind", ["smoothed", "usual"])
def test_the_oldest_transformers_that_is_supported(tmp_path: Path, kind: str) -> None:
    oldest = Path(sys.prefix) / "transformers-5.3"
    assert oldest.is_dir(), "scripts/setup installs it"
    with HuggingFaceJob(tmp_path, kind=kind, environ={"PYTHONPATH": str(oldest)}) as job:
        before = job.ranks(2)
        job.kill(before[0])
        alone = job.ranks(1, after=before[0].round)
        job.ranks(2, after=alone[0].round)
        job.finish_exactly()
        job.check_ends_of_epochs()
        assert {note["version"] for note in job.said("ended")} == {"5.3.0"}


@pytest.mark.slow("a job three times")
def test_a_job_that_ended_in_the_middle_of_an_epoch_goes_on_there(tmp_path: Path) -> None:
    for steps in (30, 30, 50):
        with HuggingFaceJob(tmp_path, *TWO, kind="usual", steps=steps) as job:
            job.enough()
            assert job.end() == 0, job.story()
    job.check_samples()
    ended = job.said("ended")[-1]
    whole = undisturbed(tmp_path, "usual", steps=50, script=job.script)
    assert ended["step"] == whole["step"] == 50
    job.compare(ended, whole)


@pytest.mark.slow("a job of two nodes, and one more")
def test_a_node_is_killed_and_another_one_joins(tmp_path: Path) -> None:
    with HuggingFaceJob(tmp_path, kind="usual") as job:
        before = job.ranks(2)
        os.kill(job.nodes()[before[1].node], signal.SIGKILL)
        alone = job.ranks(1, after=before[0].round)
        assert alone[0].pid == before[0].pid
        command = shlex.split(job.event("job.join_command")["command"])
        environ = {**os.environ, **ENVIRONMENT, processes.MARKER: job.mark}
        with (tmp_path / "joined").open("wb") as log:
            joined = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=log, stderr=log)
        both = job.ranks(2, after=alone[0].round)
        assert both[0].pid == before[0].pid
        job.enough()
        assert joined.wait(PATIENCE) == 0
        job.end()  # it tells of the node that was killed
        job.check()
        job.check_samples()
        whole = undisturbed(tmp_path, "usual", script=job.script)
        for end in job.said("ended"):
            assert end["step"] == whole["step"]
            job.compare(end, whole)
