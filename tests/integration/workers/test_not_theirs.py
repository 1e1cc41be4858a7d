"""Signals that are for the agent, sent to all processes of a node, as Slurm does in some places."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.config import COMMAND, Entry
from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin

SIGNALS = ("SIGTERM", "SIGUSR1")

_WORKER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("in place", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
assert child.poll() is None
print("all alive", flush=True)
"""
_SHELL = """
trap 'echo asked' USR1
echo in place
until [ -e {go} ]; do sleep 0.02; done
"""


@pytest.mark.parametrize("cold", [False, True])
def test_workers_their_children_and_their_server_outlive_them(
    begin: Begin, tmp_path: Path, cold: bool
) -> None:
    harness = begin(cold=cold, signals=SIGNALS)
    processes.send(harness.all(), signal.SIGUSR1)  # it imports, or is about to
    harness.ready()
    go = tmp_path / "go"
    harness.write(_WORKER.format(go=str(go)))
    harness.start(0)
    harness.prints("in place")
    processes.send(harness.all(), signal.SIGUSR1)
    go.touch()
    assert [ended.code for ended in harness.exited()] == [0], harness.story()
    harness.prints("all alive")


def test_a_shell_may_handle_them(begin: Begin, tmp_path: Path) -> None:
    go = tmp_path / "go"
    entry = Entry(COMMAND, "bash", ("-c", _SHELL.format(go=go)))
    harness = begin(entry, signals=SIGNALS)
    harness.ready()
    harness.start(0)
    harness.prints("in place")
    shells = [pid for pid in harness.all() if pid != harness.server()]
    processes.send([*shells, harness.server()], signal.SIGUSR1)
    harness.prints("asked")
    go.touch()
    harness.exited()
    assert harness.server() in harness.all()
