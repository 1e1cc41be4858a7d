"""The user's own errors, and users who catch those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_nobody_can_swallow_a_change_and_an_error_of_the_users_costs_a_restart(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, "stubborn.py", "--nproc-per-node", "3") as job:
        before = job.ranks(3)
        job.order(before[0], "sleep", 60.0)  # the others wait for it in a collective
        job.kill(before[0])
        job.wait(lambda: job.said("swallowed"), "an error that is caught")
        # They are thrown out once they should have left the round by themselves. One that
        # happens to lose that exception in a callback is replaced; the state is in the other.
        full = job.ranks(3, after=before[0].round)
        assert {before[r].pid for r in (1, 2)} & {note.pid for note in full.values()}
        (job.folder / "bad").touch()
        job.event("fault.retry", failures=1)
        after = job.ranks(3, after=full[0].round)
        job.finish()
        assert "Traceback (most recent call last):" in job.log
        assert "LookupError: sample 17 is bad" in job.log
        assert "stubborn.py" in job.log
        assert "run_loop.py" not in job.log  # people look for their own frames
        assert len(job.events("fault.retry")) == 1
        assert after[0].pid == full[0].pid


@pytest.mark.parametrize(
    ("kind", "ranks", "told"),
    [
        (
            "fail_with_words_of_gloo",
            2,
            "RuntimeError: my data server data01:9000: Connection refused",
        ),
        ("fail_while_a_reset_is_handled", 1, "KeyError: 'batch_size'"),
    ],
)
def test_an_error_that_resembles_a_lost_peer_ends_the_job_and_is_told(
    tmp_path: Path, kind: str, ranks: int, told: str
) -> None:
    options = ("--nproc-per-node", str(ranks), "--max-restarts", "0")
    with Job(tmp_path, "misuse.py", *options, kind=kind) as job:
        assert job.end() == 1, job.story()
        (failed,) = job.events("job.failed")
        assert told in failed["reason"]
        assert "(--max-restarts)" in failed["reason"]
        assert len(job.events("round.sealed")) == 1
