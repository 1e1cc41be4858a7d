"""When no memory serves: the checkpoint does, and a job that leaves as a whole leaves one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_LEFT
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS = ("--local-nodes", "2", "--min", "1")


def test_all_workers_are_killed_then_the_whole_job_leaves_and_is_started_again(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, "steps.py", *_OPTIONS, kind="saved") as job:
        before = job.ranks(2, more=15)
        job.kill(*before.values())
        loaded = job.event("state.loaded")
        assert loaded["step"] % 10 == 0
        assert loaded["step"] >= 10
        assert "no rank has a state in memory" in loaded["reason"]
        job.ranks(2, after=before[0].round)
        began = [n["step"] for n in job.said("began") if n["round"] > before[0].round]
        assert began[0] == loaded["step"]
        job.process.terminate()
        assert job.end() == EXIT_LEFT, job.story()
        # The one at which they left is committed, but not noted; the life before had come further.
        left = max(note.step for note in job.newest().values()) + 1
        assert f"step {left} is saved" in job.log, job.story()
        lives = len(job.said("began"))
    with Job(tmp_path, "steps.py", *_OPTIONS, kind="saved") as job:
        last = job.newest()[0].at
        job.wait(
            lambda: any(n.at > last and n.step > left + 2 for n in job.steps()), "further steps"
        )
        assert job.said("began")[lives]["step"] == left, job.story()
        job.enough()
        assert job.end() == 0, job.story()
