"""``elastic-run`` as a whole, up to the agent; what it says of mistakes is in test_mistakes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.run.elastic_run import main
from elastic_runtime.errors import EXIT_LEFT
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def calm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PET_", "ELASTIC_")) and name != "ELASTIC_TEST_MARK":
            monkeypatch.delenv(name)


def test_an_address_of_another_machine_cannot_be_listened_at(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--listen", "192.0.2.7:29400", "train.py"]) == 2
    assert "cannot listen at 192.0.2.7, port 29400" in capsys.readouterr().err


def test_a_bad_command_line_in_a_process_of_its_own(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elastic_runtime", "--max", "0", "train.py"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "elastic-run: error: --max=0: a job needs at least one node"
    )


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, words in (("--help", "usage: elastic-run"), ("--version", "elastic-run ")):
        with pytest.raises(SystemExit) as ended:
            main([flag])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(words)


_AS_INIT = """
import os, signal, sys
from elastic_runtime.cli.run import elastic_run

elastic_run._main = lambda *_: os.kill(os.getpid(), signal.SIGTERM) or 0
sys.exit(elastic_run.main([]))
"""


def test_the_first_process_of_a_container_can_be_ended_while_it_starts() -> None:
    isolate = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*isolate, "true"], check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    ended = subprocess.run(
        [*isolate, sys.executable, "-c", _AS_INIT], timeout=PROGRAM_TIMEOUT, check=False
    )
    assert ended.returncode == EXIT_LEFT


def test_a_batch_script_of_one_node_tells_it_where_it_is(tmp_path: Path) -> None:
    script, called = tmp_path / "train.py", tmp_path / "called"
    script.touch()
    for name, does in (("srun", f'echo "$@" >{called}'), ("scontrol", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    task = {
        **{"SLURM_JOB_ID": "21", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "x"},
        **{"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1"},
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }
    options = ("--requeue", "--listen", "127.0.0.1:0", "--node-topology", "z/r")
    subprocess.run(
        [sys.executable, "-m", "elastic_runtime", *options, str(script)],
        env={**os.environ, **task},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PROGRAM_TIMEOUT,
    )
    assert "--node-topology z/r" in called.read_text()
