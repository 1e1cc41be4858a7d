"""What is asked of Slurm, what is read of its answers, and what people read if it has none."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.slurm import slurm_calls
from elastic_runtime.cli.slurm.array_commands import ArrayReport, Element, elements_of, surplus
from elastic_runtime.cli.slurm.shown_job import ShownJob, read_shown, show_job
from elastic_runtime.cli.slurm.slurm_calls import SlurmRefused, call_slurm, host_of
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.cli.stand_ins import StandIns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "echo a warning >&2; echo 'Access/permission denied' >&2; exit 1",
            "Access/permission den",
        ),
        ("exit 3", "exit code 3"),
    ],
)
def test_the_last_line_of_a_refusal_is_the_reason(
    stand_ins: StandIns, text: str, said: str
) -> None:
    stand_ins.put("scontrol", text)
    with pytest.raises(SlurmRefused, match=f"^scontrol requeue 17: {said}"):
        call_slurm("scontrol", "requeue", "17")


def test_what_gives_no_answer_is_named(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SlurmRefused, match="no-scontrol cannot be run: No such file"):
        call_slurm("no-scontrol", "show")
    monkeypatch.setattr(slurm_calls, "_LONGEST_CALL", 0.1)
    stand_ins.put("squeue", "exec sleep 60")
    with pytest.raises(SlurmRefused, match="squeue has not answered"):
        call_slurm("squeue")


def test_a_node_without_a_name_in_dns_is_where_slurm_says(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror

    stand_ins.put("scontrol", "echo 'NodeName=n0 Arch=x86_64 NodeAddr=10.0.0.7 OS=Linux 6 x'")
    assert host_of("localhost") == "localhost"
    assert not stand_ins.calls()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert host_of("n0") == "10.0.0.7"
    stand_ins.put("scontrol", "exit 1")
    assert host_of("n0") == "n0"


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


LISTED = ["10 RUNNING n1", "2 RUNNING n0", "3 PENDING", "4 COMPLETING n2"]


def test_elements_are_listed_by_their_index() -> None:
    found = elements_of(LISTED)
    assert [element.index for element in found] == [2, 3, 4, 10]
    assert found[1] == Element(3, "PENDING", "")


def test_what_is_no_element_is_left_out() -> None:
    assert elements_of(["N/A RUNNING n1", "", "3"]) == []


def test_the_highest_indices_leave() -> None:
    found = elements_of(LISTED)
    assert surplus(found, 1) == [10]
    assert surplus(found, 2) == []


def test_it_says_how_many_there_are_and_which() -> None:
    report = ArrayReport("17", 4, tuple(elements_of(LISTED)))
    assert report.as_text().splitlines() == [
        "array 17: 1 completing, 1 pending, 2 running (at most 4 at a time)",
        "  completing: 4 on n2",
        "  pending: 3",
        "  running: 2 on n0, 10 on n1",
    ]
    assert ArrayReport("17", 0, ()).as_text() == "array 17: no element is left"
    assert report.as_dict()["elements"][0] == {"index": 2, "state": "RUNNING", "node": "n0"}
