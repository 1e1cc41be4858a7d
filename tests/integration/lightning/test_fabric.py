"""Fabric goes on in place without an adapter."""

from __future__ import annotations

from pathlib import Path

from tests.integration.in_place.job import Job

SCRIPT = str(Path(__file__).with_name("scripts") / "fabric.py")


def test_survivors_go_on_and_a_replacement_joins(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--local-nodes", "2", "--min", "1") as job:
        before = job.ranks(2)
        job.kill(before[0])
        alone = job.ranks(1, after=before[0].round, more=1)
        assert alone[0].pid == before[1].pid
        job.ranks(2, after=alone[0].round)
        job.finish()
        assert not job.events("state.loaded")
