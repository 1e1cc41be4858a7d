"""An agent that meets a defect of its own ends, and says so; the others go on without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.in_place.job import Job

_CRASHES = Path(__file__).with_name("crashes")


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
