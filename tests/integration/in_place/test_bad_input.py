"""What a user may get wrong: each is told with the object and the remedy, and nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_LEFT, EXIT_USAGE
from tests import zygote
from tests.integration.in_place.job import SCRIPTS, Job
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path


_OPTIONS = ("--nproc-per-node", "2", "--hang-timeout", "5")
# What one process can do wrong, and words of what it is told.
MISUSES = {
    "commits_outside": ["outside of elastic.run"],
    "holds_what_cannot_be_saved": ["hook"],
    "counts_with_an_object": ["state.lock"],
    "optimizes_what_is_not_given": ["'optim'"],
    "connects_before": ["remove the call"],
    "runs_twice": ["one train(world)"],
    "saves_beside": ["save() needs", "connected ranks"],
    "saves_after": ["save() needs", "call it in train"],
    "connects_inside": ["was called inside of elastic.run", "remove the call"],
}


def test_misuse_in_one_process_is_told(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "misuse.py"), "--folder", str(tmp_path)]
    zygote.run(command, check=True, timeout=PROGRAM_TIMEOUT)
    seen = Job.read(tmp_path)
    assert len([note for note in seen if note["what"] == "trained"]) == 1
    told = {note["what"]: note["text"] for note in seen if "UsageError" in note.get("error", "")}
    assert told.keys() == MISUSES.keys()
    for what, words in MISUSES.items():
        assert [word for word in words if word not in told[what]] == [], told[what]
    assert [note["what"] for note in seen if note.get("error") == ""] == []


@pytest.mark.parametrize(
    ("kind", "wrong", "remedy"),
    [
        ("differs", "net.0.weight", "build the same models"),
        ("gives_what_cannot_be_read", "odd.lock", "use plain values"),
        ("returns_early", "train returned on rank 1 after step 4", "on all ranks"),
        ("destroys_inside", "was called inside of elastic.run", "remove the call"),
        ("loads_before", "there is not a checkpoint in", "steps there: none"),
    ],
)
def test_a_job_ends_with_what_was_wrong(tmp_path: Path, kind: str, wrong: str, remedy: str) -> None:
    with Job(tmp_path, "misuse.py", *_OPTIONS, kind=kind) as job:
        assert job.end() == EXIT_USAGE, job.story()
        assert wrong in job.log
        assert remedy in job.log
        assert "Traceback" not in job.log
        assert len(job.events("round.sealed")) == 1


def test_what_scripts_of_torchrun_end_with_is_harmless(tmp_path: Path) -> None:
    with Job(tmp_path, "misuse.py", *_OPTIONS, kind="ends_as_with_torchrun") as job:
        assert job.end() == 0, job.story()
        assert [note["step"] for note in job.said("ended")] == [1, 1]
        assert len(job.events("round.sealed")) == 1
        assert [event["step"] for event in job.events("checkpoint.saved")] == [1]


def test_nobody_claims_that_a_job_without_a_commit_is_saved(tmp_path: Path) -> None:
    with Job(tmp_path, "misuse.py", "--grace", "1", kind="never_commits") as job:
        job.wait(lambda: job.said("trains"), "that it trains")
        job.process.terminate()
        assert job.end() == EXIT_LEFT, job.story()
        assert "stopped on request" in job.log
        assert "is saved" not in job.log
