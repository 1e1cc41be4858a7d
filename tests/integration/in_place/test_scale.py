"""``elasticctl scale``: the world changes, and no process is started or ended for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from elastic_runtime.errors import EXIT_LEFT
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.golden("elasticctl scale, in place")
def test_the_job_is_scaled_down_and_up_in_the_same_processes(tmp_path: Path) -> None:
    with Job(tmp_path, "steps.py", "--local-nodes", "2", "--min", "1") as job:
        before = job.ranks(2)
        where = job.where()
        assert elasticctl(["scale", "--max", "1", *where]) == 0
        alone = job.ranks(1, after=before[0].round)
        assert alone[0].pid == before[0].pid
        assert elasticctl(["scale", "--max", "2", *where]) == 0
        again = job.ranks(2, after=alone[0].round)
        assert [again[r].pid for r in (0, 1)] == [before[r].pid for r in (0, 1)]
        # Without a checkpointer nobody claims that anything is saved.
        job.process.terminate()
        assert job.end() == EXIT_LEFT
        assert "is saved" not in job.log
