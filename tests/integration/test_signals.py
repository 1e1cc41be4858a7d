"""A signal to the launcher reaches a script that handles it: as under torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 60.0
SCRIPT = """
import os, pathlib, signal, sys, time

def save(signum, frame):
    pathlib.Path(f"saved-{os.environ['RANK']}").write_text(signal.Signals(signum).name)
    sys.exit(0)

if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, save)
pathlib.Path(f"ready-{os.environ['RANK']}").touch()
time.sleep(1000)
"""


@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        ("elastic_runtime", "--nproc-per-node", "2"),
        ("elastic_runtime", "--local-nodes", "2", "--min", "2"),
    ],
)
def test_a_script_that_saves_on_a_signal_of_its_own(
    tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    mark = uuid.uuid4().hex
    running = subprocess.Popen(
        [sys.executable, "-m", *launcher, "--signals-to-handle=SIGUSR1,SIGTERM", "train.py"],
        env={**os.environ, processes.MARKER: mark},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        processes.wait_for(
            lambda: len(list(tmp_path.glob("ready-*"))) == 2, PATIENCE, "both workers run"
        )
        running.send_signal(signal.SIGUSR1)
        _, said = running.communicate(timeout=PATIENCE)
        assert (tmp_path / "saved-0").read_text() == "SIGUSR1", said
        if launcher[0] == "elastic_runtime":
            assert running.returncode == 5, said
    finally:
        processes.end(mark)
