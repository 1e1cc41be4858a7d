"""Ranks that wait long for each other, hang, or were left out for a while."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests import processes
from tests.integration.diloco.replica_job import BATCH
from tests.integration.diloco.replicas import Replicas

if TYPE_CHECKING:
    from pathlib import Path


def test_to_wait_for_long_is_no_hang_and_a_rank_that_hangs_is_ended(tmp_path: Path) -> None:
    options = ("--nproc-per-node=2", "--hang-timeout=1")
    with Replicas(tmp_path, *options, sync_every=100, size=BATCH * 250) as job:
        first = job.together(2)
        job.tell("slow", first[0])
        job.together(2, step=1)
        (tmp_path / f"slow-{first[0]}").unlink()
        assert not job.events("worker.hangs")
        assert job.round == 1
        inner = [note for note in job.said("inner") if (note["step"], note["inner"]) == (0, 99)]
        assert abs(inner[0]["at"] - inner[1]["at"]) > 1.0, "one has waited for the other"
        job.tell("hang", first[1])
        assert "hung at replica_job.py" in job.event("worker.hangs")["why"]
        assert job.end() == 0, job.story()
        assert max(job.counted([first[1]]).values()) == 1
        job.check_alike(2)


def test_a_rank_that_was_left_out_trains_nothing_twice(tmp_path: Path) -> None:
    options = ("--local-nodes=3", "--min=1", "--max=3", "--fence-timeout=15", "--grace=1")
    with Replicas(tmp_path, *options, sync_every=100_000, size=BATCH * 2500) as job:
        first = job.together(3, inner=5)
        agent = job.nodes()[sorted(job.nodes())[-1]]
        out = job.wait(lambda: children(job, agent, first), "the worker of a node")[0]
        processes.send([agent, out], signal.SIGSTOP)
        job.wait(lambda: len(enters(job)) == 2, "two ranks that go on without it")
        job.together(2, inner=20, after=1)
        processes.send([agent, out], signal.SIGCONT)
        job.wait(lambda: len(enters(job)) == 3, "three ranks")
        assert job.end() == 0, job.story()
        again = [note["at"] for note in job.said("enter") if note["size"] == 3][-1]
        # What it had trained before it came back is not part of the model.
        notes = [n for n in job.said("inner") if n["pid"] != out or n["at"] > again]
        numbers = [number for note in notes for number in note["numbers"]]
        assert len(numbers) == len(set(numbers))
        job.check_alike(3)


def children(job: Replicas, agent: int, pids: list[int]) -> list[int]:
    """Those workers that belong to an agent."""
    return [pid for pid in pids if processes.parent(processes.parent(pid)) == agent]


def enters(job: Replicas) -> list[int]:
    """The ranks of the newest round."""
    return [note["rank"] for note in job.said("enter") if note["round"] == job.round]
