"""What a script changes outside of its optimizer, in real processes, and a rank dies there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_USAGE
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["manual", "average", "last", "late"])
def test_each_step_is_applied_once(tmp_path: Path, kind: str) -> None:
    with Job(tmp_path, "outside.py", "--nproc-per-node", "2", kind=kind) as job:
        before = job.ranks(2, more=15)
        (job.folder / "die").touch()
        died = job.wait(lambda: job.said("died"), "the death of a rank")[0]
        job.ranks(2, after=before[0].round)
        job.enough()
        assert job.end() == 0, job.story()
        notes = job.said("step")
        assert all(note["weight"] == note["step"] for note in notes), job.story()
        if kind == "average":
            assert all(note["times"] == note["total"] for note in notes), job.story()
        if kind == "late":
            # The schedule had yet to follow: the step cannot count, and the checkpoint serves.
            assert all(note["scheduled"] == note["step"] for note in notes), job.story()
            unfit = job.events("state.unfit")
            assert unfit and unfit[0]["step"] == died["step"]
            assert "schedule had yet to follow" in unfit[0]["reason"]
            assert job.events("state.loaded")[0]["step"] == died["step"] - died["step"] % 10
        else:
            assert not job.events("state.unfit"), job.story()
            began = next(n for n in job.said("began") if n["round"] > before[0].round)
            assert began["step"] == died["step"] + (kind == "last")


def test_weights_that_are_other_ones_on_each_rank_are_refused_before_a_step(tmp_path: Path) -> None:
    with Job(tmp_path, "outside.py", "--nproc-per-node", "2", kind="experts") as job:
        assert job.end() == EXIT_USAGE, job.story()
        assert "model.weight has other gradients on rank 1 than on rank 0" in job.log
        assert "leave out elastic.run and State" in job.log
        assert not job.steps() and "Traceback" not in job.log, job.story()
