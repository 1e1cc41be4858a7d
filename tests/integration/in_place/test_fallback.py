"""When no memory serves: the checkpoint does, and a job that leaves as a whole leaves one."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_LEFT, EXIT_USAGE
from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


_OPTIONS = ("--nproc-per-node", "2")


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
        began = [note for note in job.said("began") if note["round"] > before[0].round]
        assert began[0]["step"] == loaded["step"]
        assert all(note["made"] == note["step"] for note in began), "a counter is saved as well"
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
        began = job.said("began")[lives:]
        assert (began[0]["step"], began[0]["made"]) == (left, left), job.story()
        job.end_well()


def test_the_last_node_saves_what_only_it_remembers_before_it_leaves(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", "--local-nodes", "2", "--min", "2", kind="saved") as job:
        ranks = job.ranks(2, more=15)
        processes.send([job.nodes()["node1"]], signal.SIGKILL)
        broke = job.event("round.left", node="node0")["timestamp"]
        job.wait(
            lambda: any(
                event["timestamp"] > broke and event["have"] == 1
                for event in job.events("job.waiting")
            ),
            "the other node to wait for a second one",
        )
        held = max(note.step for note in job.steps() if note.node == "node0")
        assert held > 10
        job.process.terminate()
        assert job.end() == EXIT_LEFT, job.story()
        saved = job.events("checkpoint.saved")[-1]["step"]
        # The last one may not have been noted.
        assert held <= saved <= held + 1, job.story()
        assert f"step {saved} is saved" in job.log, job.story()
        lives = len(job.said("began"))
        assert ranks[0].round == 1
    with Job(tmp_path, "steps.py", *_OPTIONS, kind="saved") as job:
        job.wait(lambda: len(job.said("began")) > lives, "the next life")
        assert job.said("began")[lives]["step"] == saved, job.story()
        job.end_well()


# All ranks come to differ, and nothing is saved.


def test_a_job_that_has_lost_its_steps_ends_and_says_so(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", *_OPTIONS, kind="forgets") as job:
        ranks = job.ranks(2, more=30)
        job.kill(ranks[1])
        assert job.end() == EXIT_USAGE, job.story()
        assert "holds another state than rank 0" in job.log, job.story()
        assert "the load_state_dict of 'forgetful' does not bring back" in job.log
        assert "nothing is saved" in job.log and "start_over=True" in job.log
        assert all(note["step"] > 0 for note in job.said("began")[2:]), job.story()


def test_it_begins_anew_if_it_was_told_so(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", *_OPTIONS, kind="forgets, anew") as job:
        before = job.ranks(2, more=30)
        job.kill(before[1])
        lost = job.event("state.fresh")["reached"]
        assert lost >= before[0].step
        after = job.ranks(2, after=before[0].round)
        assert all(note.step < lost for note in after.values()), job.story()
        job.end_well()
