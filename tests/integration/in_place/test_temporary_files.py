"""Where temporary files are kept: a long way down, and swept by somebody."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.users_start


def test_workers_speak_with_their_agent_wherever_its_files_are(tmp_path: Path) -> None:
    temporary = tmp_path / ("x" * 150)
    temporary.mkdir()
    options = ("--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"))
    with Job(tmp_path, "steps.py", *options, environ={"TMPDIR": str(temporary)}) as job:
        before = job.ranks(2)
        (private,) = temporary.glob("elastic-agent-*")
        shutil.rmtree(private)
        job.kill(before[1])
        after = job.ranks(2, after=before[0].round)
        assert after[0].pid == before[0].pid
        assert (private / "agent.sock").is_socket()
        assert (private / "progress-1").is_file()
        job.finish()
    assert not list(temporary.glob("elastic-agent-*"))
