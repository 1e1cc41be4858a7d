"""torchtitan's own ``Trainer`` in an elastic job: workers and nodes die, come and leave."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.torchtitan.titan_job import TitanJob
from tests.integration.trainers.scenarios import restart_in_other_worlds
from tests.integration.trainers.trainer_job import ONE_NODE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["usual", "packed"])
def test_a_job_that_loses_a_worker_and_a_node(tmp_path: Path, kind: str) -> None:
    with TitanJob(tmp_path, kind=kind) as job:
        restart_in_other_worlds(job)
        assert len({note["tokens"] for note in job.said("ended")}) == 1


def test_a_world_that_does_not_divide_the_global_batch(tmp_path: Path) -> None:
    options = ("--local-nodes", "3", "--min", "1", "--max-restarts", "100")
    with TitanJob(tmp_path, *options) as job:
        before = job.ranks(3, more=5)
        os.kill(job.nodes()[before[1].node], signal.SIGKILL)
        both = job.ranks(2, after=before[0].round)
        assert "4 to 3 each, in 2 x 2, 2 filled up" in job.log
        job.kill(both[0])
        job.ranks(2, after=both[0].round)
        job.enough()
        job.end()  # it tells of the node that was killed
        job.check_samples(redone=True)
        job.compare(job.said("ended"))


@pytest.mark.golden("torchtitan: a worker is killed")
def test_data_that_end_do_so_on_all_ranks(tmp_path: Path) -> None:
    with TitanJob(tmp_path, *ONE_NODE, kind="finite", seconds=0.2) as job:
        before = job.ranks(2, more=5)
        job.kill(before[1])
        job.ranks(2, after=before[0].round)
        job.finish_restarted()
        assert job.log.count("Ran out of data") == 2
        assert max(event["step"] for event in job.events("checkpoint.saved")) == 21
    with TitanJob(tmp_path, *ONE_NODE, kind="finite") as job:  # once more: nothing is left to do
        assert job.end() == 0, job.story()
        assert max(note["step"] for note in job.said("trained")) == 21


def test_a_run_that_torchtitan_began_is_continued(tmp_path: Path) -> None:
    theirs = "--checkpoint.enable --training.local_batch_size 5 --training.steps 20"
    with TitanJob(tmp_path, kind="theirs", environ={"TITAN_OPTIONS": theirs}) as job:
        job.end_well()
        weights = job.said("ended")[-1]["weights"]
        assert "elastic_runtime.torchtitan" in job.event("hint", about="trainer")["text"]
    assert (tmp_path / "checkpoint" / "step-20" / ".metadata").is_file()
    with TitanJob(tmp_path, *ONE_NODE, environ={"TITAN_OPTIONS": "--training.steps 20"}) as job:
        assert job.end() == 0, job.story()  # nothing was left to do, and nothing is saved
    export = "--checkpoint.last_save_model_only --training.steps 25"
    with TitanJob(tmp_path, *ONE_NODE, environ={"TITAN_OPTIONS": export}) as job:
        assert job.end() == 0, job.story()
        assert "torchtitan's own checkpoint of step 20" in job.log
        steps = [note["step"] for note in job.said("step")]
        assert min(step for step in steps if step > 20) == 21
        ends = job.said("ended")[-1]
        assert ends["step"] == 25
        assert ends["weights"] != weights
        assert {note["tokens"] for note in job.said("ended")} == {20 * 160, 25 * 160}
    exported = tmp_path / "checkpoint" / "step-25"
    assert (exported / ".metadata").is_file()
    shutil.rmtree(exported)  # as if the job had been killed between its last save and the export
    options = f"{export} --checkpoint.load_step 20"
    with TitanJob(tmp_path, *ONE_NODE, environ={"TITAN_OPTIONS": options}) as job:
        assert job.end() == 0, job.story()
        assert "load_step=20 has no effect: the job goes on at step 25" in job.log
        assert job.said("ended")[-1]["step"] == 25
    assert (exported / ".metadata").is_file()
