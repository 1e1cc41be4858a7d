"""What scripts do inside ``train``: DDP in all its ways, and what is not one optimizer's step."""

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


class Broken(Job):
    """A job of two ranks, of which one dies in the midst of a step."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, "outside.py", "--nproc-per-node", "2", kind=kind)

    def break_a_step(self) -> tuple[int, int]:
        """The step that was committed before, and its round."""
        before = self.ranks(2, more=15)
        (self.folder / "die").touch()
        died = self.wait(lambda: self.said("died"), "the death of a rank")[0]
        return died["step"], before[0].round

    def load(self, step: int) -> str:
        """Waits until the newest checkpoint up to a step is loaded; why it is."""
        loaded = self.event("state.loaded")
        # On a busy machine the save of the tenth step may not be whole yet.
        saved = [
            event["step"]
            for event in self.events("checkpoint.saved")
            if event["timestamp"] < loaded["timestamp"]
        ]
        assert loaded["step"] == max(saved) <= step
        return str(loaded["reason"])


_GOLDEN = pytest.mark.golden("in place: a half-done step is undone")


@pytest.mark.parametrize(
    "kind",
    [
        *("manual", "average", "last", "late", "scaled", "once, saved"),
        pytest.param("two", marks=_GOLDEN),
    ],
)
def test_each_step_is_applied_once(tmp_path: Path, kind: str) -> None:
    with Broken(tmp_path, kind) as job:
        step, number = job.break_a_step()
        job.ranks(2, after=number)
        began = next(note["step"] for note in job.said("began") if note["round"] > number)
        if kind == "once, saved":
            assert f"no rank is clean at step {step}" in job.load(step)
        else:
            assert not job.events("state.unfit"), job.story()
            assert began == step
            # A collective between an optimizer and the commit: since the first one all is copied.
            assert bool(job.events("state.copied")) == (kind in ("last", "late", "two"))
        assert not job.events("fault.retry"), job.story()
        job.end_well()
        if not job.events("state.loaded"):
            job.check()
        notes = job.said("step")
        assert all(note["weight"] == note["step"] for note in notes), job.story()
        if kind == "average":
            assert all(note["times"] == note["total"] for note in notes), job.story()
        elif kind == "late":
            assert all(note["scheduled"] == note["step"] for note in notes), job.story()
        elif kind == "scaled":
            assert {note["scale"] for note in notes} == {65536.0}
        elif kind == "two":
            assert all(note["other"] == note["step"] for note in notes), job.story()


def test_without_a_checkpoint_the_job_says_what_is_lost(tmp_path: Path) -> None:
    with Broken(tmp_path, "once") as job:
        step, _ = job.break_a_step()
        assert job.end() == EXIT_USAGE, job.story()
        assert f"no rank is clean at step {step}" in job.log
        assert "state.checkpoints(..., every=...)" in job.log
        assert "Traceback" not in job.log


def test_weights_that_are_other_ones_on_each_rank_are_refused_before_a_step(tmp_path: Path) -> None:
    with Broken(tmp_path, "experts") as job:
        assert job.end() == EXIT_USAGE, job.story()
        assert "model.weight has other gradients on rank 1 than on rank 0" in job.log
        assert "in_place=False" in job.log
        assert not job.steps() and "Traceback" not in job.log, job.story()
