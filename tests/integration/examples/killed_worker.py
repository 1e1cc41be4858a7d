"""An example on two workers, of which one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

_ELASTIC_RUN = ("-m", "elastic_runtime", "--nproc-per-node=2", "--log-format=console")
_PATIENCE = 60.0


def run_and_kill_a_worker(folder: Path, module: str, *options: str, once: str) -> str:
    """Runs it to its end, which must be a good one.

    Args:
        folder: for the log, and for what the example writes (``--dir``).
        module: the example.
        *options: of it.
        once: a worker is killed when it has said this.

    Returns:
        All that was said.
    """
    mark = f"example-{uuid.uuid4().hex}"
    log = folder / "log"
    command = (*_ELASTIC_RUN, "-m", module, "--dir", str(folder / "runs"), *options)
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", processes.MARKER: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        processes.wait_for(lambda: once in log.read_text(), _PATIENCE, once, log.read_text)
        found = processes.marked(mark)
        workers = [p for p in found if processes.parent(processes.parent(p)) == job.pid]
        os.kill(workers[0], signal.SIGKILL)
        processes.wait_for(lambda: job.poll() is not None, _PATIENCE, "the end", log.read_text)
        said = log.read_text()
        assert job.returncode == 0, said
        assert "killed by SIGKILL" in said
        return said
    finally:
        processes.end(mark)
        job.wait()
