"""Workers that stand still: stopped ones, busy ones, and such that wait for nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


_FOR_EVER = 3600.0
# Seconds: no step of a busy machine takes as long.
_HANG = 4.0
_HANGS = ("--hang-timeout", str(_HANG))


@pytest.mark.golden("in place: a worker hangs")
def test_a_stopped_worker_is_replaced_and_a_busy_one_waited_for(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", "--local-nodes", "3", "--min", "1") as job:
        before = job.ranks(3)
        # A stopped one cannot leave a round that breaks, and does not even answer.
        job.kill(before[1], number=signal.SIGSTOP)
        job.kill(before[2])
        stuck = job.event("worker.stuck", node=before[1].node)
        assert "does not answer" in stuck["why"]
        full = job.ranks(3, after=before[0].round)
        assert before[0].pid in {note.pid for note in full.values()}
        # One that sleeps when the round breaks leaves it when it wakes up.
        job.order(full[0], "busy", 5.0)
        job.kill(full[1])
        again = job.ranks(3, after=full[0].round)
        assert {full[0].pid, full[2].pid} < {note.pid for note in again.values()}
        assert len(job.events("worker.stuck")) == 1
        job.finish()


def test_who_hangs_outside_of_a_collective_is_named_and_replaced(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "3", *_HANGS)
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(3)
        job.order(before[1], "sleep", _FOR_EVER)
        hangs = job.event("worker.hangs")
        assert hangs["local_ranks"] == [before[1].local_rank]
        assert "noting.py" in hangs["why"]
        full = job.ranks(3, after=before[0].round)
        assert [full[r].pid for r in (0, 1)] == [before[r].pid for r in (0, 2)]
        # The stacks of all its threads are in its log.
        assert "in obey" in job.log
        assert "steps.py" in job.log
        reason = job.event("worker.killed")["reason"]
        assert reason.startswith(f"worker {before[1].rank} hung at ")
        assert "no step for" in reason
        recovered = job.event("round.recovered")
        assert recovered["stalled"] > max(_HANG, recovered["seconds"])
        assert not job.events("fault.retry"), "that is no failure of the script"
        # Who says that it is busy does not hang.
        job.order(full[0], "busy", 2 * _HANG)
        further = job.step + 20
        job.wait(lambda: job.step > further, "steps after the evaluation")
        assert len(job.events("worker.hangs")) == 1
        job.finish()
        (done,) = job.events("job.done")
        assert done["restarts"]["killed"] == 1
        assert done["stalled"] > _HANG
        assert 0.0 < done["goodput"] < 1.0


def test_who_hangs_is_found_also_if_the_round_breaks_meanwhile(tmp_path: Path) -> None:
    options = ("--local-nodes", "3", "--min", "1", *_HANGS, "--rejoin-timeout", "5m")
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(3)
        job.order(before[1], "sleep", _FOR_EVER)
        job.kill(before[2])
        stuck = job.event("worker.stuck", node=before[1].node)
        assert "(--hang-timeout)" in stuck["why"]
        full = job.ranks(3, after=before[0].round)
        pids = {note.pid for note in full.values()}
        assert before[0].pid in pids
        assert before[1].pid not in pids
        assert not job.events("fault.retry"), "that is no failure of the script"
        job.finish()


def test_other_nodes_wait_for_a_busy_worker_unless_it_is_stopped(tmp_path: Path) -> None:
    options = ("--local-nodes", "3", *_HANGS, "--rejoin-timeout", "3")
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(3)
        for rank, seconds in ((2, 2.5 * _HANG), (0, 1.5 * _HANG)):
            job.order(before[rank], "busy", seconds)
            count = len(job.steps())
            job.wait(lambda n=count: len(job.steps()) > n + 60, "steps after the evaluation")
            assert not job.events("worker.hangs"), job.story()
        assert job.events("round.waits")[0]["nodes"] == [before[2].node]
        assert not job.events("worker.stuck"), "who answers may be busy for as long as it likes"
        job.order(before[1], "busy", _FOR_EVER)
        job.kill(before[1], number=signal.SIGSTOP)
        stuck = job.event("worker.stuck")
        assert stuck["node"] == before[1].node
        assert stuck["why"].startswith("busy for ")
        full = job.ranks(3, after=before[0].round)
        # Nor has anybody forgotten what a hang is.
        job.order(full[1], "sleep", _FOR_EVER)
        assert job.event("worker.hangs")["node"] == full[1].node, job.story()
        last = job.ranks(3, after=full[0].round)
        assert last[0].round == full[0].round + 2, "one without, one with the replacement"
        assert not job.events("fault.retry"), job.story()
        job.finish()


def test_who_waits_for_a_slow_replacement_does_not_hang(tmp_path: Path) -> None:
    options = ("--local-nodes", "2", "--min", "2", "--hang-timeout", "2")
    with Job(tmp_path, "steps.py", *options, kind="slow", seconds=1.0) as job:
        before = job.ranks(2)
        (tmp_path / "slow").touch()  # more than three times as long as the time-out
        job.kill(before[1])
        again = job.ranks(2, after=before[0].round)
        assert before[0].pid in {note.pid for note in again.values()}
        assert again[0].round == before[0].round + 1
        assert not job.events("worker.hangs"), job.story()
        assert not job.events("fault.retry"), job.story()
        job.finish()


def test_who_stands_still_on_its_way_into_a_round_is_replaced(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--rejoin-timeout", "6", "--hang-timeout", "3")
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(2)
        (tmp_path / "stand").touch()  # for the replacement alone
        job.kill(before[1])
        stuck = job.event("worker.stuck")
        assert stuck["why"].startswith("not in train for "), stuck
        full = job.ranks(2, after=before[0].round)
        assert before[0].pid in {note.pid for note in full.values()}
        assert not job.events("fault.retry"), "that is no failure of the script"
        job.finish()


def test_who_hangs_in_its_very_first_step_is_replaced_when_the_others_say_so(
    tmp_path: Path,
) -> None:
    """Its own agent does not know how long such a step takes; those that train with it do."""
    options = ("--min", "1", "--max", "2", *_HANGS, "--lease-ttl", "5")
    with Job(tmp_path, "steps.py", *options) as job:
        before = job.ranks(1)
        (tmp_path / "late").touch()
        with Job(tmp_path, "steps.py", *job.where(), *options) as newcomer:
            stuck = newcomer.event("worker.stuck")
            assert "all others wait for it, while it is at" in stuck["why"]
            assert "steps.py" in stuck["why"]
            full = job.ranks(2, after=before[0].round)
            assert before[0].pid in {note.pid for note in full.values()}
            assert not job.events("fault.retry"), "that is no failure of the script"
            job.enough()
            assert newcomer.end() == 0, job.story()
        job.finish()
