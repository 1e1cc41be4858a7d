"""Who was left out has no say by itself: what was saved meanwhile counts, and stays.

With one store for the nodes of one machine and with etcd, but for what only befalls etcd.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId, newest_first
from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import NewEtcd
    from tests.integration.in_place.job import Note


# Seconds until a store that ended with its host is taken over, on a machine that is busy.
_LONG = 150.0
_OPTIONS = ("--min", "1", "--max", "3", "--lease-ttl", "2", "--hang-timeout", "0")


class Two(NamedTuple):
    """A job of two nodes, where it is found, and the agent of each node, by its name.

    Attributes:
        jobs: the command that each node was started with; one of both with an embedded store.
    """

    jobs: dict[str, Job]
    where: list[str]
    agents: dict[str, int]

    def tree(self, note: Note) -> list[int]:
        """The agent that runs this worker, with all its processes."""
        return [*_below(self.agents[note.node]), self.agents[note.node]]


def _below(pid: int) -> list[int]:
    found = []
    for child in processes.marked(processes.mark_of(pid)):
        if processes.parent(child) == pid:
            found += [*_below(child), child]
    return found


@pytest.fixture(params=["embedded", "etcd"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Two]:
    """A job of two nodes that train together and save every ten steps."""
    with ExitStack() as stack:
        if request.param == "embedded":
            options = ("--local-nodes", "2", *_OPTIONS)
            job = stack.enter_context(Job(tmp_path, "steps.py", *options, kind="saved"))
            yield Two(dict.fromkeys(job.nodes(), job), job.where(), job.nodes())
            return
        etcd = request.getfixturevalue("etcd")
        where = ["--rdzv-endpoint", f"etcd://{etcd.endpoint}/{tmp_path.name}", "--rdzv-id", "x"]
        jobs = {}
        for name in ("node0", "node1"):
            options = (*where, *_OPTIONS, "--node-name", name)
            jobs[name] = stack.enter_context(Job(tmp_path, "steps.py", *options, kind="saved"))
        yield Two(jobs, where, {name: job.process.pid for name, job in jobs.items()})


def _newest(folder: Path) -> CheckpointId:
    """The newest whole one: who is killed may leave the rest of another."""
    return newest_first(path.parent.name for path in (folder / "saved").glob("*/MANIFEST.json"))[0]


def _begun(job: Job, number: int) -> dict[str, Any]:
    """The first note of a round after this one, which makes some steps."""

    def later() -> list[dict[str, Any]]:
        return [note for note in job.said("began") if note["round"] > number]

    began = job.wait(later, "a further round", _LONG)[0]
    job.wait(lambda: [n for n in job.steps() if n.round > number][15:], "further steps")
    return began


@pytest.mark.timeout(500)
@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_who_was_silent_goes_on_from_what_was_saved_meanwhile(
    two: Two, end: str, tmp_path: Path
) -> None:
    job = two.jobs["node0"]
    before = job.ranks(2, more=15)
    silent, other = before[0], before[1]
    stopped = two.tree(silent)
    processes.send(stopped, signal.SIGSTOP)
    alone = job.ranks(1, after=silent.round, more=25)
    assert alone[0].pid == other.pid
    if end == "leaves":
        processes.send([two.agents[other.node]], signal.SIGTERM)
    else:
        processes.send(two.tree(other), signal.SIGKILL)
    gone = two.agents[other.node]
    job.wait(lambda: processes.state(gone) in ("", "Z"), "the end of the other node")
    saved = _newest(tmp_path)
    assert saved.step > silent.step
    processes.send(stopped, signal.SIGCONT)
    number = alone[0].round
    job = two.jobs[silent.node]  # the other one may have ended
    began = _begun(job, number)
    assert began["step"] == saved.step, job.story()
    job.wait(lambda: _newest(tmp_path) > saved, "a save of its own")
    job.enough()


@pytest.mark.timeout(500)
def test_a_spare_goes_on_from_what_the_members_saved_when_they_left(
    two: Two, tmp_path: Path
) -> None:
    job = two.jobs["node0"]
    before = job.ranks(2, more=15)
    assert elasticctl(["scale", "--max", "1", *two.where]) == 0
    alone = job.ranks(1, after=before[0].round, more=25)
    member = alone[0]
    spare = next(note for note in before.values() if note.pid != member.pid)
    processes.send([two.agents[member.node]], signal.SIGTERM)
    number = member.round
    job = two.jobs[spare.node]  # the other one ends
    began = _begun(job, number)
    left = max(note.step for note in job.steps() if note.pid == member.pid)
    assert began["pid"] == spare.pid
    assert began["step"] >= left, job.story()
    job.enough()


@pytest.mark.timeout(300)
def test_a_member_comes_back_before_a_spare_when_all_leases_have_ended(
    tmp_path: Path, new_etcd: NewEtcd
) -> None:
    """Nothing is saved: what the survivor holds is held by nobody else."""
    etcd = new_etcd()
    where = ["--rdzv-endpoint", f"etcd://{etcd.endpoint}", "--rdzv-id", "x"]
    options = (*where, "--min", "1", "--max", "2", "--lease-ttl", "2", "--max-restarts", "0")
    with ExitStack() as stack:
        jobs = {}
        for name in ("node0", "node1", "node2"):
            job = Job(tmp_path, "steps.py", *options, "--node-name", name)
            jobs[name] = stack.enter_context(job)
        before = jobs["node0"].ranks(2, more=15)
        for rank in (0, 1, 0):
            etcd.pause()
            paused = time.monotonic()
            job.wait(lambda since=paused: time.monotonic() > since + 3.5, "the end of all leases")
            etcd.unpause()
            killed, survivor = before[rank], before[1 - rank]
            job.kill(killed)
            after = job.ranks(2, after=killed.round, more=15)
            held = max(
                note.step
                for note in job.steps()
                if note.pid == survivor.pid and note.round == survivor.round
            )
            first = min(note.step for note in job.steps() if note.round > survivor.round)
            assert first > held, job.story()
            before = after
        job.enough()
