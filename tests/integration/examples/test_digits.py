"""The example on real digits: alone, under torchrun, and with another world in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from tests import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DIGITS = ["-m", "elastic_runtime.examples.digits", "--every", "60 steps"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ELASTIC_RUN = ["-m", "elastic_runtime", "--nproc-per-node=2", "--log-format=console"]
ENVIRONMENT = {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
PATIENCE = 60.0


def run(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    ).stdout


def workers_of(agent: int, mark: str) -> list[int]:
    """The workers of an agent are the children of its fork server."""
    found = processes.marked(mark)
    return [pid for pid in found if processes.parent(processes.parent(pid)) == agent]


def assert_learned(output: str) -> None:
    found = re.search(r"test accuracy (0\.\d+)", output)
    assert found and float(found[1]) >= 0.97, output[-2000:]


def test_digits_are_learned_across_a_change_of_the_world(tmp_path: Path) -> None:
    directory = str(tmp_path / "runs")
    alone = run(*DIGITS, "--dir", directory, "--epochs", "3")
    assert "epoch 2: step 69, 1 workers" in alone
    together = run(*TORCHRUN, *DIGITS, "--dir", directory)
    assert "resumed at step 69, epoch 3" in together
    assert "epoch 19: step 460, 2 workers" in together
    assert_learned(together)


def test_in_place_without_an_agent_a_restart_is_a_restart(tmp_path: Path) -> None:
    directory = str(tmp_path / "runs")
    alone = run(*DIGITS, "--in-place", "--dir", directory, "--epochs", "3")
    assert "epoch 2: step 69, 1 workers" in alone
    together = run(*TORCHRUN, *DIGITS, "--in-place", "--dir", directory)
    assert "from step 69 on: 2 workers, epoch 3" in together
    assert "epoch 19: step 460, 2 workers" in together
    assert_learned(together)


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"digits-{uuid.uuid4().hex}"
    yield mark
    processes.end(mark)


def test_in_place_the_survivor_of_a_killed_worker_loses_no_step(tmp_path: Path, mark: str) -> None:
    log = tmp_path / "log"
    digits = [*DIGITS, "--in-place", "--dir", str(tmp_path / "runs"), "--step-ms", "10"]
    with log.open("wb") as out:
        job = subprocess.Popen(
            [sys.executable, *ELASTIC_RUN, *digits],
            env={**os.environ, **ENVIRONMENT, processes.MARKER: mark},
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    processes.wait_for(
        lambda: "epoch 2: step 69, 2 workers" in log.read_text(), PATIENCE, "epoch 2", log.read_text
    )
    os.kill(workers_of(job.pid, mark)[-1], signal.SIGKILL)
    assert job.wait(timeout=PATIENCE) == 0, log.read_text()
    output = log.read_text()
    # The survivor went on alone and from memory, until the new worker was there.
    alone = re.search(r"from step (\d+) on: 1 worker", output)
    assert alone and int(alone[1]) >= 69, output  # the checkpoint is that of step 60
    assert "epoch 19: step 460, 2 workers" in output, output
    assert_learned(output)
