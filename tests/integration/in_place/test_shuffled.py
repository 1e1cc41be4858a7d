"""Where samples come in torch's own order, which a change of the world begins anew, it is told."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("cold", [(), ("--cold",)])
def test_a_plain_script_hears_of_it_when_its_world_has_changed(
    tmp_path: Path, cold: tuple[str, ...]
) -> None:
    options = ("--local-nodes", "2", "--min", "1", *cold)
    with Job(tmp_path, "shuffled.py", *options, kind="plain") as job:
        before = job.ranks(2, more=8)
        assert not job.events("hint"), "it may never change"
        os.kill(job.nodes()[before[1].node], signal.SIGKILL)
        text = job.event("hint", about="sampler")["text"]
        assert "RandomSampler" in text
        assert "elastic.DataLoader" in text


def test_a_loop_with_a_state_hears_of_it_at_once(tmp_path: Path) -> None:
    options = ("--local-nodes", "2", "--min", "1")
    with Job(tmp_path, "shuffled.py", *options, kind="state") as job:
        assert "RandomSampler" in job.event("hint", about="sampler")["text"]
        job.enough()
        job.end()
        assert len(job.events("hint")) == 1
