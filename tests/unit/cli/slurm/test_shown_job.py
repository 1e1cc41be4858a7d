"""What is read of what Slurm shows of a job."""

from __future__ import annotations

import pytest

from elastic_runtime.cli.slurm.shown_job import ShownJob, read_shown, show_job
from elastic_runtime.errors import UsageError

# As Slurm 22.05 prints it, but for most of the fields.
ALLOCATION = (
    "JobId=17 JobName=train UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=gpu[07-09] BatchHost=gpu07 NumNodes=3 "
)
PENDING = "JobId=18 JobName=train JobState=PENDING Reason=Resources ReqNodeList=(null) NodeList= "
ARRAY = (
    "JobId=21 ArrayJobId=21 ArrayTaskId=2-7 ArrayTaskThrottle=4 JobState=PENDING NodeList=(null) \n"
    "JobId=22 ArrayJobId=21 ArrayTaskId=0 JobState=RUNNING NodeList=n0 BatchHost=n0 \n"
)


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (ALLOCATION, ShownJob("17", "RUNNING", "gpu07")),
        (ALLOCATION.replace("BatchHost=gpu07 ", ""), ShownJob("17", "RUNNING", "gpu07")),
        (PENDING, ShownJob("17", "PENDING", "")),
        (ARRAY, ShownJob("17", "PENDING", "n0", is_array=True, throttle=4)),
        (ARRAY.replace(" ArrayTaskThrottle=4", ""), ShownJob("17", "PENDING", "n0", True, 0)),
    ],
)
def test_a_job_is_read(text: str, job: ShownJob) -> None:
    assert read_shown("17", text) == job


@pytest.mark.parametrize("name", ["train", "17_3", "--help", ""])
def test_slurm_is_asked_for_ids_only(name: str) -> None:
    with pytest.raises(UsageError, match="is no id of a job of Slurm's"):
        show_job(name)
