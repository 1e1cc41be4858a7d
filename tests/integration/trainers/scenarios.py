"""What happens to a job under a trainer, whichever it is; each of them ends and checks the job."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.integration.in_place.job import PATIENCE
from tests.integration.trainers.trainer_job import TWO, TrainerJob

if TYPE_CHECKING:
    from pathlib import Path


def lose_workers_and_a_node(job: TrainerJob, tolerance: float = 1e-5) -> None:
    """Rank 0 and rank 1 are killed, one after the other, and a node is asked to leave."""
    before = job.ranks(2)
    job.kill(before[0])  # which has loggers and the progress bar, and writes checkpoints
    # The survivor is alone only until the replacement is there, which may be no step at all.
    both = job.ranks(2, after=before[0].round)
    assert before[1].pid in {note.pid for note in both.values()}, "the survivor was restarted"
    job.kill(both[1])
    both = job.ranks(2, after=both[0].round)
    os.kill(job.nodes()[both[1].node], signal.SIGTERM)
    alone = job.ranks(1, after=both[0].round)
    assert alone[0].pid == both[0].pid
    job.finish_exactly(tolerance)


def interrupt_evaluations(job: TrainerJob) -> None:
    """A rank is killed in an evaluation, three times."""
    for number in range(3):
        seen = len(job.said("validating"))
        job.wait(lambda seen=seen: len(job.said("validating")) > seen + 4, "an evaluation")
        found = job.said("validating")[-1]
        notes = [n for n in job.said("validating") if n["round"] == found["round"]]
        pids = {note["rank"]: note["pid"] for note in notes}
        if number % 2 in pids:
            os.kill(pids[number % 2], signal.SIGKILL)
        job.ranks(2, after=found["round"])  # in vain, if nobody was killed
    (job.folder / "slow-validation").unlink()
    job.finish_exactly()
    job.check_ends_of_epochs()


def die_before_a_commit(job: TrainerJob) -> None:
    """Rank 1 dies between optimizer and commit, in the last step of an epoch."""
    before = job.ranks(2)
    (job.folder / "die-in-hook").touch()
    job.wait(lambda: job.said("died"), "the end of rank 1")
    job.ranks(2, after=before[0].round)
    job.finish_exactly()
    job.check_ends_of_epochs()  # its end must follow all the same
    step = job.said("died")[0]["step"]
    assert not job.events("state.unfit")
    assert step in {note["step"] for note in job.said("validated")}


def kill_a_node_and_add_one(job: TrainerJob) -> None:
    """A node is killed, and another one joins by the command that the job has shown."""
    before = job.ranks(2)
    os.kill(job.nodes()[before[1].node], signal.SIGKILL)
    alone = job.ranks(1, after=before[0].round)
    assert alone[0].pid == before[0].pid
    joined = job.join()
    both = job.ranks(2, after=alone[0].round)
    assert both[0].pid == before[0].pid
    job.enough()
    assert joined.wait(PATIENCE) == 0
    job.end()  # it tells of the node that was killed
    job.check()
    job.check_samples()
    whole = job.undisturbed()
    for end in job.said("ended"):
        assert end["step"] == whole["step"]
        job.compare(end, whole)


def restart_in_other_worlds(job: TrainerJob) -> None:
    """A job that starts again after faults loses a worker and a node."""
    before = job.ranks(2, more=12)
    job.kill(before[0])
    both = job.ranks(2, after=before[0].round)
    os.kill(job.nodes()[both[1].node], signal.SIGTERM)
    job.ranks(1, after=both[0].round)
    job.finish_restarted()


def end_early_and_go_on(kind: type[TrainerJob], folder: Path, *ends: int) -> None:
    """A job that ends in the middle of an epoch is started again with more steps.

    Args:
        kind: of job.
        folder: for all of its lives.
        *ends: after how many steps each of them ends.
    """
    for steps in ends:
        with kind(folder, *TWO, kind="usual", steps=steps) as job:
            job.enough()
            assert job.end() == 0, job.story()
    job.check_samples()
    ended = job.said("ended")[-1]
    whole = job.undisturbed(steps=ends[-1])
    assert ended["step"] == whole["step"] == ends[-1]
    job.compare(ended, whole)
