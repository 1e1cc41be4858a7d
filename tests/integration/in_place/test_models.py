"""What scripts do inside ``train``: DDP in all its ways, groups of their own, two optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_USAGE
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_all_ways_of_ddp_and_groups_of_the_users_are_rebuilt(tmp_path: Path) -> None:
    with Job(tmp_path, "models.py", "--nproc-per-node", "3") as job:
        before = job.ranks(3)
        job.kill(before[1])
        # With two of them for a moment, where the replacement is not quicker than the others: if it
        # is, it takes the rank of the one that was killed.
        full = job.ranks(3, after=before[0].round)
        stay, all_three = {before[r].pid for r in (0, 2)}, {full[r].pid for r in range(3)}
        assert stay < all_three, job.story()
        assert before[1].pid not in all_three
        job.finish()


def test_a_gradient_scaler_does_not_carry_a_broken_step_into_the_next(tmp_path: Path) -> None:
    with Job(tmp_path, "scaled.py", "--nproc-per-node", "2") as job:
        before = job.ranks(2, more=15)
        (job.folder / "die").touch()
        died = job.wait(lambda: job.said("died"), "the death of a rank")[0]
        job.ranks(2, after=before[0].round)
        job.finish()
        began = next(note for note in job.said("began") if note["round"] > before[0].round)
        assert began["step"] == died["step"]
        assert all(note["weight"] == note["step"] for note in job.said("step")), job.story()
        assert {note["scale"] for note in job.said("step")} == {65536.0}
        assert not job.events("fault.retry"), job.story()


def _break_between_optimizers(job: Job) -> tuple[int, int]:
    """The step that was committed when a rank died in the middle of the next one, and the round."""
    before = job.ranks(2, more=15)
    (job.folder / "die").touch()
    died = job.wait(lambda: job.said("died"), "the death of a rank")[0]
    return died["step"], before[0].round


@pytest.mark.golden("in place: a half-done step is undone")
def test_with_a_shadow_a_half_done_step_is_undone(tmp_path: Path) -> None:
    with Job(tmp_path, "gan.py", "--nproc-per-node", "2", kind="shadow") as job:
        step, number = _break_between_optimizers(job)
        job.ranks(2, after=number)
        began = next(note for note in job.said("began") if note["round"] > number)
        assert began["step"] == step
        job.finish()


def test_without_one_the_checkpoint_serves_and_an_event_says_why(tmp_path: Path) -> None:
    with Job(tmp_path, "gan.py", "--nproc-per-node", "2", kind="saved") as job:
        step, number = _break_between_optimizers(job)
        loaded = job.event("state.loaded")
        # On a busy machine the save of the tenth step may not be whole yet.
        saved = [e for e in job.events("checkpoint.saved") if e["timestamp"] < loaded["timestamp"]]
        assert loaded["step"] == max(e["step"] for e in saved)
        assert f"no rank is clean at step {step}" in loaded["reason"]
        job.ranks(2, after=number)
        job.enough()
        assert job.end() == 0, job.story()


def test_without_a_checkpoint_the_job_says_what_is_lost(tmp_path: Path) -> None:
    with Job(tmp_path, "gan.py", "--nproc-per-node", "2") as job:
        step, _ = _break_between_optimizers(job)
        assert job.end() == EXIT_USAGE, job.story()
        assert f"no rank is clean at step {step}" in job.log
        assert "give elastic.run a checkpointer" in job.log
        assert "Traceback" not in job.log
