"""The example under Hugging Face's Trainer: a worker is killed, and the model learns."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "elastic_runtime.examples.hf_text"
ELASTIC_RUN = ("-m", "elastic_runtime", "--nproc-per-node=2", "--log-format=console")
PATIENCE = 150.0


def test_text_is_learned_although_a_worker_is_killed(tmp_path: Path) -> None:
    mark = f"hf-{uuid.uuid4().hex}"
    log = tmp_path / "log"
    command = (*ELASTIC_RUN, "-m", MODULE, "--dir", str(tmp_path / "runs"), "--step-ms", "30")
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", processes.MARKER: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        processes.wait_for(lambda: "'loss'" in log.read_text(), PATIENCE, "a loss", log.read_text)
        assert "a step has 32 samples over all workers (now 2 workers" in log.read_text()
        found = processes.marked(mark)
        workers = [p for p in found if processes.parent(processes.parent(p)) == job.pid]
        os.kill(workers[0], signal.SIGKILL)
        processes.wait_for(lambda: job.poll() is not None, PATIENCE, "the end", log.read_text)
        said = log.read_text()
        assert job.returncode == 0, said
        assert "killed by SIGKILL" in said
        result = re.search(r"loss (\d\.\d+) a letter after (\d+) steps", said)
        assert result and float(result[1]) < 3 and int(result[2]) == 94, said
    finally:
        processes.end(mark)
        job.wait()
