"""Saves that fail, and a save that nobody can say of whether it has failed."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.storage.catalog import CheckpointStatus, list_checkpoints
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT
from tests.integration.in_place.job import Job
from tests.mounts import disk

if TYPE_CHECKING:
    from pathlib import Path


_OPTIONS = ("--nproc-per-node", "2")


def whole(tmp_path: Path) -> list[int]:
    """The steps of all that is whole in storage, the oldest first."""
    found = list_checkpoints(LocalStorage(tmp_path / "saved"))
    return sorted(one.which.step for one in found if one.status is CheckpointStatus.WHOLE)


def test_training_goes_on_while_a_storage_fails_and_saves_again_soon_after(tmp_path: Path) -> None:
    with Job(tmp_path, "failing.py", *_OPTIONS) as job:
        job.event("checkpoint.saved")
        (tmp_path / "broken").touch()
        job.wait(lambda: len(job.events("checkpoint.save_failed")) >= 2, "two failed saves")
        failed = job.events("checkpoint.save_failed")[-1]
        assert "Input/output error" in failed["problem"]
        job.wait(lambda: job.step > failed["step"] + 3, "steps after a failed save")
        (tmp_path / "broken").unlink()
        job.wait(lambda: max(whole(tmp_path)) > failed["step"], "a checkpoint")
        job.end_well()
        assert {note["step"] for note in job.said("done")} == {max(whole(tmp_path))}
        assert not job.events("worker.failed"), job.story()


def test_training_does_not_wait_for_a_storage_that_does_not_answer(tmp_path: Path) -> None:
    # On a disk that hangs, the threads that write cannot even be killed.
    with (
        disk(tmp_path / "saved") as storage,
        Job(tmp_path, "failing.py", *_OPTIONS, "--hang-timeout", "7") as job,
    ):
        job.event("checkpoint.saved")
        with storage.frozen():  # not when the job is ended: nobody could
            late = job.event("checkpoint.save_late")
            began, step = time.monotonic(), job.step
            job.wait(lambda: time.monotonic() > began + 15, "twice the time that is a hang")
            job.wait(lambda: job.step > step + 20, "steps without a save")
        job.wait(lambda: max(whole(tmp_path)) > late["step"], "the save that was put off")
        job.end_well()
        assert {event["round"] for event in job.events("round.sealed")} == {1}, job.story()


def test_no_whole_save_for_too_long_restarts_the_job_and_counts(tmp_path: Path) -> None:
    with Job(tmp_path, "failing.py", *_OPTIONS, "--max-restarts", "1", kind="overdue") as job:
        job.event("checkpoint.saved")
        (tmp_path / "broken").touch()
        failed = job.event("worker.failed")["reason"]
        assert "SaveOverdue: nothing was saved for" in failed, job.story()
        job.wait(lambda: max(note.round for note in job.steps()) > 1, "steps after the restart")
        assert job.end() == EXIT_FAILED, "it is not a mistake of the user's"
        assert "restarts are used" in job.log, job.story()
        assert "Traceback" not in job.log, job.story()


def test_who_leaves_without_having_saved_does_not_say_so(tmp_path: Path) -> None:
    with Job(tmp_path, "failing.py", *_OPTIONS) as job:
        job.event("checkpoint.saved")
        (tmp_path / "broken").touch()
        job.process.terminate()
        assert job.end() == EXIT_LEFT, job.story()
        assert not re.search(r"on request; step \d+ is saved", job.log), job.story()
        assert "is not saved: cannot save to" in job.log, job.story()


@pytest.mark.parametrize("kind", ["peer", "self"])
def test_a_rank_dies_while_the_last_save_is_committed(tmp_path: Path, kind: str) -> None:
    # The first round waits for the second node: the script counts few steps, and both are to train.
    options = ("--local-nodes", "2", "--min", "1", "--last-call", "60")
    with Job(tmp_path, "failing.py", *options, kind=kind) as job:
        assert job.end() == 0, job.story()
        assert "worker.killed" in job.log, "or nothing was tried"
        assert "remove it" not in job.log
        ended = {note["step"] for note in job.said("done")}
        assert ended == {12}, job.story()
        assert max(whole(tmp_path)) == 12
        found = list_checkpoints(LocalStorage(tmp_path / "saved"))
        assert {one.status for one in found} == {CheckpointStatus.WHOLE}
