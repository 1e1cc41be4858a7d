"""What happens to a job under a trainer, whichever it is."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.integration.in_place.job import PATIENCE
from tests.integration.trainers.trainer_job import ONE_NODE, TOLERANCE, TrainerJob

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.in_place.job import Note


def die_before_a_commit(job: TrainerJob) -> None:
    """Rank 1 dies between optimizer and commit, in the last step of an epoch: its end follows."""
    before = job.ranks(2)
    (job.folder / "die-in-hook").touch()
    job.wait(lambda: job.said("died"), "the end of rank 1")
    job.ranks(2, after=before[0].round)
    assert job.events("state.copied") and not job.events("state.loaded")


def replace_a_worker(job: TrainerJob, rank: int, number: int = signal.SIGKILL) -> dict[int, Note]:
    """One of two ranks is killed; those who train together after it."""
    before = job.ranks(2)
    job.kill(before[rank], number=number)
    # The survivor is alone only until the replacement is there, which may be no step at all.
    both = job.ranks(2, after=before[0].round)
    assert before[1 - rank].pid in {note.pid for note in both.values()}, "it was restarted"
    return both


def lose_workers(
    job: TrainerJob, tolerance: float = TOLERANCE, second: int = signal.SIGKILL
) -> None:
    """Rank 0 and rank 1 are killed, one after the other; on two nodes one is asked to leave.

    Args:
        job: it ends, and is checked.
        tolerance: by how much a weight may differ.
        second: the signal that kills rank 1.
    """
    replace_a_worker(job, 0)  # which has loggers and the progress bar, and writes checkpoints
    both = replace_a_worker(job, 1, second)
    if both[0].node != both[1].node:
        os.kill(job.nodes()[both[1].node], signal.SIGTERM)
        alone = job.ranks(1, after=both[0].round)
        assert alone[0].pid == both[0].pid
    job.finish_exactly(tolerance)


def kill_a_node_and_add_one(job: TrainerJob) -> None:
    """Rank 0 and then a node is killed, and another one joins by the command that is shown."""
    both = replace_a_worker(job, 0)
    os.kill(job.nodes()[both[1].node], signal.SIGKILL)
    alone = job.ranks(1, after=both[0].round)
    assert alone[0].pid == both[0].pid
    joined = job.join()
    both = job.ranks(2, after=alone[0].round)
    assert both[0].pid == alone[0].pid
    job.enough()
    assert joined.wait(PATIENCE) == 0
    job.end()  # it tells of the node that was killed
    job.check_exactly()


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
    (folder / "enough").touch()
    for steps in ends:
        with kind(folder, *ONE_NODE, steps=steps) as job:
            assert job.end() == 0, job.story()
    job.check_samples()
    ended = job.said("ended")[-1]
    assert ended["step"] == ends[-1]
    job.compare([ended])


def run_on_the_oldest_trainer(job: TrainerJob, tolerance: float = TOLERANCE) -> None:
    """A worker is killed in a job whose trainer is the oldest that is supported."""
    replace_a_worker(job, 0)
    job.finish_exactly(tolerance)
    job.check_ends_of_epochs()
