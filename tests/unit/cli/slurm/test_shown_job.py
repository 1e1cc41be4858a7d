"""What is read of what Slurm shows of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.slurm.shown_job import ShownJob, read_shown, show_job
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.cli.stand_ins import StandIns

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
        (ALLOCATION.replace("gpu07", "gpu[0-"), ShownJob("17", "RUNNING", "gpu07")),
        (PENDING, ShownJob("17", "PENDING", "")),
        (ARRAY, ShownJob("21", "PENDING", "n0", is_array=True, throttle=4)),
        (ARRAY.replace(" ArrayTaskThrottle=4", ""), ShownJob("21", "PENDING", "n0", True, 0)),
    ],
)
def test_a_job_is_read(text: str, job: ShownJob) -> None:
    assert read_shown("17", text) == job


@pytest.mark.parametrize("name", ["train", "0", "17_", "17.0", "--help", ""])
def test_slurm_is_asked_for_ids_only(name: str) -> None:
    with pytest.raises(UsageError, match="is no id of a job of Slurm's"):
        show_job(name)


def test_a_job_that_slurm_has_forgotten_is_said(stand_ins: StandIns) -> None:
    stand_ins.put("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(UsageError, match="Slurm knows no job 4711, or has forgotten it"):
        show_job("4711")


@pytest.mark.parametrize("name", ["22", "21_0", "21_[2-7%4]"])
def test_an_element_stands_for_its_array(stand_ins: StandIns, name: str) -> None:
    """squeue lists all three."""
    stand_ins.put("scontrol", f"printf '{ARRAY}'".replace("\n", "\\n"))
    assert show_job(name).job == "21"
    assert stand_ins.calls() == [f"scontrol --oneliner show job {name.partition('_')[0]}"]
