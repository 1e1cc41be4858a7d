"""A signal to the launcher reaches a script that handles it: as under torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_LEFT
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


# Nothing here waits for less than ten minutes for an answer.
_PATIENT = """
import sys
from elastic_runtime.rendezvous.stores.embedded import store_hosting
store_hosting.STORE_TIMEOUT = 600.0
from elastic_runtime.cli.run.elastic_run import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, EXIT_LEFT), (signal.SIGTERM, 75), (signal.SIGTERM, 0)]
)
def test_nobody_waits_for_a_c10d_store_that_says_nothing_in_order_to_leave(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "train.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        where = f"c10d://127.0.0.1:{silent.getsockname()[1]}"
        chosen = () if code == EXIT_LEFT else ("--leave-code", str(code))
        options = (*chosen, "--cold", "--rdzv-endpoint", where, "--rdzv-conf", "timeout=600")
        running = subprocess.Popen(
            [sys.executable, "-c", _PATIENT, *options, "train.py"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with silent.accept()[0]:
                running.send_signal(number)
                _, said = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
            running.wait()
    assert (running.returncode, "stopped on request" in said) == (code, True), said


@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        ("elastic_runtime", "--cold", "--nproc-per-node", "2"),
        ("elastic_runtime", "--cold", "--local-nodes", "2", "--min", "2"),
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
