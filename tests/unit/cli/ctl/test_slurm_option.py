"""``--slurm JOB``: which run is meant, and what only Slurm can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.ctl import elasticctl
from elastic_runtime.cli.ctl.slurm_option import or_slurm, scaled_by_slurm, shown_with_elements
from elastic_runtime.errors import UsageError
from tests.unit.cli.slurm.test_shown_job import ALLOCATION, ARRAY, PENDING

if TYPE_CHECKING:
    from tests.unit.cli.stand_ins import StandIns

_ETCD = "etcd://h"


def _asked(stand_ins: StandIns, shown: str, **values: Any) -> dict[str, Any] | None:
    """What a command is called with; None: it is not called."""
    stand_ins.put("scontrol", f"[ $2 = show ] && [ $3 = job ] && echo '{shown}' || exit 0")
    stand_ins.put("squeue", "echo '0 RUNNING localhost'; echo '1 RUNNING n1'; echo '2 PENDING '")
    heard: list[dict[str, Any]] = []
    act = scaled_by_slurm if "low" in values else shown_with_elements
    usual = {"rdzv_endpoint": None, "run_id": None, "job": None, "form": "table"}
    command = or_slurm(act)(lambda **given: heard.append(given))
    command(slurm_job="17", **{**usual, **values})
    return heard[0] if heard else None


def test_the_store_of_an_allocation_is_where_its_batch_script_runs(stand_ins: StandIns) -> None:
    found = _asked(stand_ins, ALLOCATION.replace("gpu07", "localhost"))
    assert found is not None
    assert (found["rdzv_endpoint"], found["run_id"]) == ("c10d://localhost:15017", "slurm-17")
    found = _asked(stand_ins, PENDING, rdzv_endpoint=_ETCD, run_id="r7")
    assert found is not None
    assert (found["rdzv_endpoint"], found["run_id"]) == (_ETCD, "r7")


def test_a_job_that_does_not_run_has_no_store(stand_ins: StandIns) -> None:
    with pytest.raises(UsageError, match="job 17 is PENDING, so it has no store now"):
        _asked(stand_ins, PENDING)


def test_a_job_that_is_over_or_still_starts_says_so(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="job 17 is COMPLETED: its output says how"):
        _asked(stand_ins, ALLOCATION.replace("RUNNING", "COMPLETED"))
    here = ALLOCATION.replace("gpu07", "localhost")
    stand_ins.put("scontrol", f"echo '{here}'")
    assert elasticctl.main(["status", "--slurm", "17"]) == 4  # nobody listens at its port
    said = capsys.readouterr().err
    assert "job 17 is RUNNING, but nothing is seen of it yet" in said
    assert "its nodes are still starting, or its store is at another port" in said


def test_an_allocation_does_not_grow(stand_ins: StandIns) -> None:
    with pytest.raises(UsageError, match="Slurm gives it no more nodes"):
        _asked(stand_ins, ALLOCATION, job="4", low=None, high=None)
    here = ALLOCATION.replace("gpu07", "localhost")
    assert _asked(stand_ins, here, low=None, high=2)


def test_the_elements_of_an_array_are_slurms(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _asked(stand_ins, ARRAY) is None
    assert capsys.readouterr().out.startswith("array 21: 1 pending, 2 running (at most 4 at a time")
    assert _asked(stand_ins, ARRAY, job="1", low=None, high=None) is None
    assert capsys.readouterr().out.endswith("run at a time; asked to leave: 1\n")
    _asked(stand_ins, ARRAY, job="12", low=None, high=None)
    assert capsys.readouterr().out.endswith("at a time; it has 3 that have not ended\n")
    _asked(stand_ins, ARRAY, job="1", low=None, high=None)
    assert stand_ins.calls()[-2:] == [
        "scontrol update jobid=21 ArrayTaskThrottle=1",
        "scontrol requeue 21_1",
    ]


def test_the_run_of_an_array_is_in_the_store_that_is_named(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _asked(stand_ins, ARRAY, rdzv_endpoint=_ETCD)
    assert found is not None
    assert found["run_id"] == "slurm-21"
    assert "2 running" in capsys.readouterr().out
    assert _asked(stand_ins, ARRAY, rdzv_endpoint=_ETCD, low=1, high=None)
    with pytest.raises(UsageError, match="name the etcd"):
        _asked(stand_ins, ARRAY, low=1, high=None)


@pytest.mark.parametrize("words", ["events --slurm 17", "scale --slurm 17", "scale --slurm 17 0"])
def test_what_is_missing_is_said(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    stand_ins.put("scontrol", f"echo '{ARRAY}'")
    assert elasticctl.main(words.split()) == 2
    said = capsys.readouterr().err
    assert "name the etcd" in said or "At least one" in said
