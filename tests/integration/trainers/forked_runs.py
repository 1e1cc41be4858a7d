"""Runs of a script without an agent, for comparison: most of one is the import of its trainer.

So a process imports it once, and each run is a fork of that (``scripts/fork_runs.py``).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROGRAM = Path(__file__).with_name("scripts") / "fork_runs.py"
# By script and PYTHONPATH; they end with this process, which holds their standard input.
_servers: dict[tuple[str, str], subprocess.Popen[str]] = {}


def run_alone(script: Path, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path) -> str:
    """Runs a script to its end.

    Args:
        script: ends with ``if __name__ == "__main__"``.
        arguments: its own.
        environ: its whole environment.
        cwd: where it runs, and where its output is kept.

    Returns:
        What it has printed.

    Raises:
        AssertionError: it fails, or does not end.
    """
    key = (str(script), environ.get("PYTHONPATH", ""))
    server = _servers.get(key)
    if server is None or server.poll() is not None:
        server = _servers[key] = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(script)],
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    log = cwd / "log"
    told = {"argv": list(arguments), "environ": dict(environ), "cwd": str(cwd), "log": str(log)}
    server.stdin.write(json.dumps(told) + "\n")
    server.stdin.flush()
    ready = select.select([server.stdout], [], [], PROGRAM_TIMEOUT)[0]
    code = server.stdout.readline().strip() if ready else "none: it has not ended"
    said = log.read_text(errors="replace") if log.exists() else ""
    if code != "0":
        with _servers.pop(key):  # its pipes are closed, and it is waited for
            os.killpg(server.pid, signal.SIGKILL)  # a run that hangs as well
    assert code == "0", f"exit code {code}\n{said}"
    return said
