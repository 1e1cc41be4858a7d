"""Under other strategies ``ElasticCallback`` resumes: in any world, with the right samples."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.lightning.trainer_job import TrainerJob

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow("a job of two nodes that starts again three times")


@pytest.mark.parametrize("kind", ["restarted", "sharded"])
def test_a_job_that_is_restarted_in_other_worlds(tmp_path: Path, kind: str) -> None:
    with TrainerJob(tmp_path, kind=kind) as job:
        before = job.ranks(2, more=12)
        job.kill(before[0])
        both = job.ranks(2, after=before[0].round)
        os.kill(job.nodes()[both[1].node], signal.SIGTERM)
        job.ranks(1, after=both[0].round)
        job.finish_restarted()
