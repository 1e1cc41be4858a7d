"""Under other strategies ``ElasticCallback`` resumes: in any world, with the right samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.lightning.lightning_job import LightningJob
from tests.integration.trainers.scenarios import restart_in_other_worlds

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["restarted", "sharded"])
def test_a_job_that_is_restarted_in_other_worlds(tmp_path: Path, kind: str) -> None:
    with LightningJob(tmp_path, kind=kind) as job:
        restart_in_other_worlds(job)
