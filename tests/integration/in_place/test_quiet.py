"""A job in perfect health has nothing to say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

# More than half of what a test may take is time that has to pass here.
pytestmark = [pytest.mark.users_start, pytest.mark.timeout(240)]


# Ranks connect ahead to stores that nobody needs yet. Their patience was over after some 57 s, and
# torch then printed its C++ stack for each.
_LONG_ENOUGH = 70.0


def test_a_job_in_health_prints_nothing_but_its_events(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", "--local-nodes", "3", "--min", "1", seconds=0.5) as job:
        job.ranks(3)
        until = time.monotonic() + _LONG_ENOUGH
        processes.wait_for(lambda: time.monotonic() > until, 2 * _LONG_ENOUGH, "a minute", pause=1)
        (first,) = job.events("round.sealed")[:1]
        assert first["round"] == 1
        said = [line for line in job.log.splitlines() if not line.startswith("{")]
        # Of a machine whose resolver does not know its own addresses torch says so.
        said = [line for line in said if "hostname of the client socket" not in line]
        assert said == []
        assert not job.events("hint")
        job.finish()
