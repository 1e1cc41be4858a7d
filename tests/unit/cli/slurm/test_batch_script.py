"""The batch script of a job under Slurm, ``elasticctl sbatch``, and the end of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.ctl import elasticctl
from elastic_runtime.cli.slurm.batch_script import BatchJob, batch_script, elements_in, seconds_of
from elastic_runtime.cli.slurm.job_end import JobEnd, end_of_job
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.records import OutcomeRecord

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.stand_ins import StandIns


pytestmark = pytest.mark.usefixtures("folder")


def _script(**fields: Any) -> str:
    words = {"program": ["elastic-run"], "arguments": ["--min", "2", "a b.py"], "script": "a b.py"}
    return batch_script(BatchJob(**{**words, **fields}))


def test_an_allocation_shrinks_by_itself() -> None:
    text = _script(nodes=8, time="2:00:00", options=["--partition=gpu"])
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in ("--nodes=8", "--no-kill", "--requeue", "--time=2:00:00", "--signal=USR1@120"):
        assert f"#SBATCH {option}" in lines
    assert "#SBATCH --partition=gpu" in lines
    # A shell would end at Slurm's SIGTERM, and its job with it.
    assert lines[-1] == "exec elastic-run --slurm job --requeue --min 2 'a b.py'"


def test_each_element_of_an_array_is_a_node() -> None:
    lines = _script(array="0-7%4").splitlines()
    assert "#SBATCH --array=0-7%4" in lines
    assert "#SBATCH --nodes=1" in lines
    assert lines[-1].startswith("exec elastic-run --slurm array --requeue ")


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("30", 1800),
        ("30:05", 1805),
        ("2:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("0-0:0:9", 9),
    ],
)
def test_limits_are_written_in_six_ways(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


def test_a_short_job_needs_a_late_signal() -> None:
    assert "#SBATCH --signal=USR1@10" in _script(nodes=2, time="2", signal="USR1@10")
    assert "--signal" not in _script(nodes=2, time="1", signal="")


@pytest.mark.parametrize(
    ("array", "elements"),
    [("0-7", 8), ("0-7%4", 8), ("1,3,5-9:2", 5), ("0-9:3", 4), ("3", 1), ("", 0), ("a", 0)],
)
def test_elements_are_counted(array: str, elements: int) -> None:
    assert elements_in(array) == elements


def test_what_has_spaces_stands_in_quotes() -> None:
    lines = _script(nodes=2, name="my job", options=["--comment=a b"]).splitlines()
    assert '#SBATCH --job-name="my job"' in lines
    assert '#SBATCH --comment="a b"' in lines


@pytest.mark.parametrize("time", ["0", "UNLIMITED", "infinite"])
def test_no_limit_is_not_too_short(time: str) -> None:
    assert f"#SBATCH --time={time}" in _script(nodes=2, time=time, signal="usr1@120")


def test_a_job_that_does_not_come_back() -> None:
    lines = _script(nodes=2, requeue=False, signal="").splitlines()
    assert "#SBATCH --no-requeue" in lines
    assert not [line for line in lines if "--signal" in line]
    assert lines[-1] == "exec elastic-run --slurm job --min 2 'a b.py'"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give one of --nodes N"),
        ({"nodes": 2, "array": "0-3"}, "give one of --nodes N"),
        ({"array": "7-0"}, "--array='7-0'"),
        ({"array": "0-7:0"}, "--array='0-7:0'"),
        ({"array": "0-7%0"}, "--array='0-7%0'"),
        ({"array": "0-99999999"}, "--array='0-99999999'"),
        ({"nodes": 2, "signal": "B:TERM@60"}, "--signal='B:TERM@60'"),
        ({"nodes": 2, "signal": "KILL@5"}, "--signal='KILL@5'"),
        ({"nodes": 2, "signal": "BB:USR1@1"}, "--signal='BB:USR1@1'"),
        ({"nodes": 2, "options": ["--time=2"]}, "write --time=2, which is checked"),
        ({"nodes": 2, "name": "a\nrm -rf x"}, "cannot stand in a batch script"),
        ({"nodes": 2, "script": 'a".py'}, "cannot stand in a batch script"),
        ({"array": "all"}, "--array='all'"),
        ({"nodes": 2, "time": "2h"}, "--time='2h'"),
        ({"nodes": 2, "signal": "at 120"}, "--signal='at 120'"),
        ({"nodes": 2, "time": "3"}, "--time=3 is too short for --signal=USR1@120"),
        ({"nodes": 2, "time": "2", "signal": "B:USR2"}, "60 s before the limit"),
        ({"nodes": 2, "options": ["qos=high"]}, "--sbatch='qos=high'"),
        ({"nodes": 2, "options": ["--qos=a\nrm"]}, "cannot stand in a batch script"),
    ],
)
def test_what_sbatch_would_refuse_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        _script(**fields)
    assert said in str(caught.value)


def test_the_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sbatch", "--nodes", "2", "--sbatch=--qos=high", "--min", "1", "train.py", "--lr", "1"]
    assert elasticctl.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --job-name=train" in lines
    assert "#SBATCH --qos=high" in lines
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith("--slurm job --requeue --min 1 train.py --lr 1")


def test_it_is_submitted_only_if_that_is_asked(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stand_ins.put("sbatch", f"cat >{tmp_path}/got; echo '17;cluster'")
    words = ["--array", "0-3", "--rdzv-endpoint", "etcd://h", "train.py"]
    assert elasticctl.main(["sbatch", *words]) == 0
    assert not stand_ins.calls()
    printed = capsys.readouterr().out
    assert elasticctl.main(["sbatch", "--submit", *words]) == 0
    assert capsys.readouterr().out == "submitted job 17\n"
    assert stand_ins.calls() == ["sbatch --parsable"]
    assert (tmp_path / "got").read_text() == printed


def test_what_slurm_refuses_is_said(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins.put("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    assert elasticctl.main(["sbatch", "--submit", "--nodes=1", "train.py"]) == 4
    assert "sbatch --parsable: sbatch: error: invalid partition" in capsys.readouterr().err


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
