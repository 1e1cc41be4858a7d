"""The batch script of a job under Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.cli.slurm.batch_script import BatchJob, batch_script, elements_in, seconds_of
from elastic_runtime.errors import UsageError


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
