"""Small programs that tests run to their end."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.processes import PROGRAM_TIMEOUT


def python(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a Python of its own ends with and prints, in this environment and some variables."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
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
