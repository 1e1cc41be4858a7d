"""A log disk that is full, and has room again."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_no_worker_hears_of_a_full_log_disk(disk: Path, tmp_path: Path) -> None:
    (disk / "others").write_bytes(b"x" * (400 << 10))
    options = ("--local-nodes", "2", "--redirects", "3", "--log-dir", str(disk))
    with Job(tmp_path, "steps.py", *options, kind="loud") as job:
        before = job.ranks(2)
        job.event("log.dropped", why="No space left on device")
        further = job.step + 20
        job.wait(lambda: job.step > further, "steps beside the full disk")
        # A replacement starts although there is no room for its log.
        job.kill(before[1])
        job.ranks(2, after=before[0].round)
        (disk / "others").unlink()
        assert job.event("log.resumed", node=before[0].node)["bytes"] > 0
        assert not job.events("worker.failed"), job.story()
        assert not job.events("fault.retry"), job.story()
        job.finish()
    logs = [path.read_bytes() for path in disk.glob("*/round-*/*/rank-*/stdout.log")]
    assert any(b"bytes could not be written here" in log for log in logs)
