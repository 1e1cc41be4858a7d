"""Fabric goes on in place without an adapter."""

from __future__ import annotations

from pathlib import Path

from tests.integration.in_place.job import Job

SCRIPT = str(Path(__file__).with_name("scripts") / "fabric.py")


def test_survivors_go_on_and_a_replacement_joins(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--local-nodes", "2", "--min", "1") as job:
        before = job.ranks(2)
        job.kill(before[0])
        both = job.ranks(2, after=before[0].round)
        assert before[1].pid in {note.pid for note in both.values()}
        job.finish()
        assert not job.events("state.loaded")
