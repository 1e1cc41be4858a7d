"""The examples that train in place, on two workers, of which one is killed: the model learns."""

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
from tests.integration.examples.test_digits import DIGITS, run

if TYPE_CHECKING:
    from pathlib import Path

ELASTIC_RUN = ("-m", "elastic_runtime", "--nproc-per-node=2", "--log-format=console")
PATIENCE = 60.0


def run_and_kill_a_worker(folder: Path, example: str, *options: str, once: str) -> str:
    """Runs it to its end, which must be a good one.

    Args:
        folder: for the log, and for what the example writes (``--dir``).
        example: its name.
        *options: of it.
        once: a worker is killed when it has said this.

    Returns:
        All that was said.
    """
    mark = f"example-{uuid.uuid4().hex}"
    log = folder / "log"
    module = f"elastic_runtime.examples.{example}"
    command = (*ELASTIC_RUN, "-m", module, "--dir", str(folder / "runs"), *options)
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", processes.MARKER: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        processes.wait_for(lambda: once in log.read_text(), PATIENCE, once, log.read_text)
        found = processes.marked(mark)
        # The workers of an agent are the children of its fork server.
        workers = [p for p in found if processes.parent(processes.parent(p)) == job.pid]
        os.kill(workers[-1], signal.SIGKILL)
        processes.wait_for(lambda: job.poll() is not None, PATIENCE, "the end", log.read_text)
        said = log.read_text()
        assert job.returncode == 0, said
        assert "killed by SIGKILL" in said
        return said
    finally:
        processes.end(mark)
        job.wait()


def test_digits_in_place_begin_alone_and_the_survivor_loses_no_step(tmp_path: Path) -> None:
    alone = run(*DIGITS, "--in-place", "--dir", str(tmp_path / "runs"), "--epochs", "3")
    assert "epoch 2: step 69, 1 worker," in alone
    options = ("--every", "60 steps", "--in-place", "--step-ms", "10")
    once = "epoch 5: step 138, 2 workers"
    said = run_and_kill_a_worker(tmp_path, "digits", *options, once=once)
    assert "from step 69 on: 2 workers, epoch 3" in said
    # The survivor went on alone and from memory, until the new worker was there.
    found = re.search(r"from step (\d+) on: 1 worker", said)
    assert found and int(found[1]) >= 138, said  # the checkpoint is that of step 120
    assert "epoch 19: step 460, 2 workers" in said, said
    accuracy = re.search(r"test accuracy (0\.\d+)", said)
    assert accuracy and float(accuracy[1]) >= 0.97, said


@pytest.mark.parametrize(
    ("example", "pause", "once", "learned"),
    [
        ("lightning_digits", "5", "Epoch 1", r"test accuracy 0\.9[7-9]\d* after 460 steps"),
        ("hf_text", "30", "'loss'", r"loss [0-2]\.\d+ a letter after 94 steps"),
    ],
)
def test_a_trainers_example(
    tmp_path: Path, example: str, pause: str, once: str, learned: str
) -> None:
    said = run_and_kill_a_worker(tmp_path, example, "--step-ms", pause, once=once)
    assert re.search(learned, said), said
    if example == "hf_text":
        assert "a step has 32 samples over all workers (now 2 workers" in said
