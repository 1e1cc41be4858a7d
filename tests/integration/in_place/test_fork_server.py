"""Fork servers and agents that die: the others do not wait for them, and hear why."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests import processes
from tests.integration.in_place.job import Job

_CRASHES = Path(__file__).with_name("crashes")
# Imported by each fork server: the next one is not ready before the test says so.
_SLOW = """
import os, time

while os.path.exists(os.path.join({folder!r}, "slow")):
    time.sleep(0.02)
"""


def fork_server(job: Job, agent: int) -> int:
    found = processes.fork_server(agent, processes.marked(job.mark))
    assert found, job.story()
    return found


def test_the_others_go_on_before_the_next_fork_server_is_ready(tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(_SLOW.format(folder=str(tmp_path)))
    options = ("--local-nodes", "2", "--min", "1", "--preload", "slowly", "--rejoin-timeout", "1h")
    with Job(tmp_path, "steps.py", *options, environ={"PYTHONPATH": str(tmp_path)}) as job:
        before = job.ranks(2)
        (tmp_path / "slow").touch()
        processes.send([fork_server(job, job.nodes()[before[1].node])], signal.SIGKILL)
        alone = job.ranks(1, after=before[0].round)
        assert alone[0].pid == before[0].pid
        assert job.event("server.died", node=before[1].node)["why"] == "signal 9"
        assert not job.events("fault.retry"), job.story()
        (tmp_path / "slow").unlink()
        again = job.ranks(2, after=alone[0].round)
        assert again[0].pid == before[0].pid
        gap = min(n.at for n in job.steps() if n.round == alone[0].round) - max(
            n.at for n in job.steps() if n.round == before[0].round
        )
        print(f"the others stood still for {gap:.3f} s")
        job.finish()


@pytest.mark.parametrize("thread", ["participant", "MainThread"])
def test_an_agent_whose_thread_dies_is_gone_at_once(tmp_path: Path, thread: str) -> None:
    told = tmp_path / "crash"
    environ = {"PYTHONPATH": str(_CRASHES), "ELASTIC_TEST_CRASH": str(told)}
    options = ("--local-nodes", "2", "--min", "1", "--log-dir", str(tmp_path / "logs"))
    # So long a lease that whoever waits for its end is noticed.
    options = (*options, "--lease-ttl", "120")
    with Job(tmp_path, "steps.py", *options, environ=environ) as job:
        before = job.ranks(2)
        draft = tmp_path / "draft"
        draft.write_text(f"{before[0].node} {thread}")
        draft.rename(told)
        job.kill(before[0])
        after = job.ranks(1, after=before[0].round)
        assert after[0].node == before[1].node
        # Its last word comes when all that it ran has ended: perhaps after the round of the others.
        job.wait(lambda: "has crashed:" in job.log, "the crashed agent says so")
        line = next(line for line in job.log.splitlines() if "has crashed:" in line)
        (file,) = (tmp_path / "logs").glob("elastic-crash-*.txt")
        assert str(file) in line
        assert "RuntimeError" in line
        assert "Traceback (most recent call last)" in file.read_text()
        assert "Traceback" not in job.log
        job.finish()
