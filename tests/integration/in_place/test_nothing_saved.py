"""All ranks come to differ, nothing is saved: the job does not begin again in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_USAGE
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


# Both are to be there from the first step on, also on a busy machine.
_OPTIONS = ("--local-nodes", "2", "--min", "1", "--last-call", "60")


def test_a_job_that_has_lost_its_steps_ends_and_says_so(tmp_path: Path) -> None:
    with Job(tmp_path, "unsaved.py", *_OPTIONS) as job:
        ranks = job.ranks(2, more=30)
        job.kill(ranks[1])
        assert job.end() == EXIT_USAGE, job.story()
        assert "holds another state than rank 0" in job.log, job.story()
        assert "some object's load_state_dict does not bring back" in job.log
        assert "nothing is saved" in job.log and "start_over=True" in job.log
        assert all(note["step"] > 0 for note in job.said("began")[2:]), job.story()


def test_it_begins_anew_if_it_was_told_so(tmp_path: Path) -> None:
    with Job(tmp_path, "unsaved.py", *_OPTIONS, kind="anew") as job:
        before = job.ranks(2, more=30)
        job.kill(before[1])
        lost = job.event("state.fresh")["reached"]
        assert lost >= before[0].step
        after = job.ranks(2, after=before[0].round)
        assert all(note.step < lost for note in after.values()), job.story()
        job.enough()
        assert job.end() == 0, job.story()
