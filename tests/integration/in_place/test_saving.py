"""A save in the background while the world changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


_OPTIONS = ("--nproc-per-node", "2")


def saved_after(job: Job, step: int) -> None:
    """Waits for a checkpoint of a later step."""
    job.wait(
        lambda: [event for event in job.events("checkpoint.saved") if event["step"] > step],
        f"a checkpoint of a step after {step}",
    )


def test_a_worker_dies_while_a_save_is_under_way(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with Job(tmp_path, "gated.py", *_OPTIONS, kind="saved", seconds=0.1) as job:
        job.wait(lambda: job.step > 10, "a step beside the save of step 10")
        before = job.newest()
        job.kill(before[1])
        # The others do not wait for what can no longer be finished.
        job.ranks(2, after=before[0].round)
        assert [event["step"] < 10 for event in job.events("checkpoint.saved")] == [True]
        gate.unlink()
        assert job.event("checkpoint.save_discarded")["step"] == 10
        saved_after(job, 10)
        assert not job.events("checkpoint.save_failed"), job.story()
        job.finish()


def test_a_worker_dies_while_training_waits_for_the_save_before(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with Job(tmp_path, "gated.py", *_OPTIONS, kind="saved", seconds=0.03) as job:
        job.wait(lambda: job.step >= 19, "the step at which the next save is due")
        before = job.newest()
        job.kill(before[1])
        job.event("round.entered", round=before[0].round + 1)
        gate.unlink()
        saved_after(job, 19)
        assert not job.events("checkpoint.save_failed"), job.story()
        job.finish()
