"""torchtitan's own ``Trainer`` in an elastic job: workers and nodes die, come and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.torchtitan.titan_job import TitanJob
from tests.integration.trainers.scenarios import restart_in_other_worlds

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_loses_a_worker_and_a_node(tmp_path: Path) -> None:
    with TitanJob(tmp_path) as job:
        restart_in_other_worlds(job)
