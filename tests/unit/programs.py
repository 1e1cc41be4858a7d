"""Small programs that tests run to their end."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.processes import PROGRAM_TIMEOUT


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Runs a program that finds the modules of this directory."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )


def waiting(code: str, **environ: str) -> subprocess.Popen[str]:
    """Starts such a program, which says something and waits for the end of its input."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), **environ},
    )
