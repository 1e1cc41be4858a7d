"""Runs a script again and again, each time in a fork of a process that has imported what it needs.

``python fork_runs.py SCRIPT``: each line of standard input is a run as JSON (``argv``, ``environ``,
``cwd``, ``log``), and each line of standard output is the exit code of one. It ends with its input.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    script = sys.argv.pop(1)
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="imported")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(script, json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(script: str, told: dict[str, Any]) -> None:
    """Becomes the run, and does not return."""
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["environ"])
    sys.argv = [script, *told["argv"]]
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
