"""What commands do whose output cannot be written, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastic_runtime.errors import EXIT_FAILED, EXIT_USAGE

_CTL = "elastic_runtime.cli.ctl.elasticctl"
_RUN = "elastic_runtime"


@pytest.mark.parametrize(
    ("module", "arguments", "redirected", "code", "words"),
    [
        (_CTL, "--help", ">&-", 0, ""),
        (_CTL, "--help", "<&- >&- 2>&-", 0, ""),
        (_CTL, "--help", ">/dev/full", EXIT_FAILED, "elasticctl: error: cannot write or read: "),
        (_CTL, "checkpoint list nowhere", ">&-", EXIT_USAGE, "elasticctl: error: there is no dir"),
        (_CTL, "checkpoint list nowhere", "2>&-", EXIT_USAGE, ""),
        (_CTL, "checkpoint list nowhere", "2>/dev/full", EXIT_USAGE, ""),
        (_CTL, "checkpoint list nowhere", ">/dev/full 2>/dev/full", EXIT_USAGE, ""),
        (_RUN, "--version", ">&-", 0, ""),
        (_RUN, "--version", ">/dev/full", 0, ""),
        (_RUN, "--max 0 train.py", "", EXIT_USAGE, "elastic-run: error: --max=0: a job needs at"),
        (_RUN, "nowhere.py", "<&- >&- 2>&-", EXIT_USAGE, ""),
        (_RUN, "nowhere.py", "2>/dev/full", EXIT_USAGE, ""),
    ],
)
def test_the_exit_code_stays_and_there_is_no_traceback(
    module: str, arguments: str, redirected: str, code: int, words: str
) -> None:
    program = [sys.executable, "-m", module, *arguments.split()]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *program], capture_output=True, text=True
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == bool(words)
