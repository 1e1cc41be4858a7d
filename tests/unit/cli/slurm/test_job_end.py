"""What follows from the end of a job's step."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.cli.slurm.job_end import JobEnd, end_of_job
from elastic_runtime.protocol.records import OutcomeRecord

DONE = OutcomeRecord("1", True, 0, "the script ended well on all")
FAILED = OutcomeRecord("1", False, 1, "it failed")
KILLED = 137


def _end(code: int, outcome: OutcomeRecord | None = None, **how: Any) -> JobEnd:
    usual = {"array": False, "requeue": True, "leave_code": 5, "restarts": 0, "seconds": 999.0}
    return end_of_job(code, outcome, **{**usual, **how})


def test_a_job_that_is_done_ends_with_0_whoever_was_killed() -> None:
    assert _end(0, DONE) == JobEnd(0)
    killed = _end(KILLED, DONE)
    assert (killed.code, killed.requeue) == (0, False)
    assert "137" in killed.reason


def test_a_job_that_failed_does_not_come_back() -> None:
    assert _end(1, FAILED) == JobEnd(1)
    # Elements that have not started would begin it again.
    assert _end(1, FAILED, array=True) == JobEnd(1, cancel=True)


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize(("code", "ends"), [(5, 75), (75, 75), (KILLED, KILLED)])
def test_who_was_asked_to_leave_or_killed_comes_back(array: bool, code: int, ends: int) -> None:
    end = _end(code, array=array, leave_code=75)
    assert (end.code, end.requeue, end.cancel) == (ends, True, False)
    assert ("node" in end.reason) is array
    assert not _end(code, array=array, leave_code=75, requeue=False).requeue


def test_what_kills_a_job_each_time_does_not_do_so_for_ever() -> None:
    assert _end(KILLED, restarts=9).requeue
    assert not _end(KILLED, restarts=10).requeue
    assert "was queued again 10 times" in _end(KILLED, restarts=10).reason
    # Whoever is preempted often comes back as often, if that leaves time to train.
    assert _end(5, restarts=1000).requeue
    assert _end(5, restarts=9, seconds=30.0).requeue
    assert not _end(5, restarts=10, seconds=30.0).requeue


def test_an_element_that_has_not_found_its_store_comes_back() -> None:
    """It may have started while the etcd was away, and nobody else brings it back."""
    end = _end(4, array=True)
    assert (end.code, end.requeue, end.reason) == (4, True, "this node was without its store")
    assert not _end(4, array=True, restarts=10).requeue


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_other_codes_stay(code: int) -> None:
    assert _end(code) == JobEnd(code)
