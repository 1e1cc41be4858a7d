"""``elasticctl sbatch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.ctl import elasticctl

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.stand_ins import StandIns


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


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


_ARRAY = "--array 0-3 --rdzv-endpoint etcd://h"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nodes 2 --min 3 train.py", "a job of at least 3 nodes has no room in 2"),
        (f"{_ARRAY} --min 5 train.py", "a job of at least 5 nodes has no room in 4"),
        (
            "--nodes 2 --min 2 --submit train.py",
            "--submit belongs before the options of elastic-run",
        ),
        ("--nodes 2 --min 2 --qos=high train.py", "write it as --sbatch=--qos=high"),
        ("--nodes 2 --min 2 --qos high train.py", "write it as --sbatch=--qos=high"),
        (
            "--array 0-3 --rdzv-endpoint c10d://n0:29400 train.py",
            "name an etcd with --rdzv-endpoint",
        ),
        ("--nodes 2 --local-nodes 2 train.py", "--local-nodes=2: it is Slurm that says"),
        ("--nodes 2 --node-topology z/r train.py", "--node-topology=z/r is about one node"),
        (f"{_ARRAY} --node-topology z/r train.py", "--node-topology=z/r is about one node"),
        ("--nodes 2 --slurm off train.py", "--slurm=off: it is Slurm"),
        ("--array 0-3 train.py", "name an etcd with --rdzv-endpoint"),
        ("--nodes 2 gone.py", "there is no script 'gone.py' here"),
    ],
)
def test_what_would_fail_when_the_job_starts_is_said_before(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert elasticctl.main(["sbatch", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_what_slurm_refuses_is_said(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins.put("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    assert elasticctl.main(["sbatch", "--submit", "--nodes=1", "train.py"]) == 4
    assert "sbatch --parsable: sbatch: error: invalid partition" in capsys.readouterr().err
