"""Nodes that are slow to start: a person may give up, and a job may be over before they come."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.processes import Launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLOW = Path(__file__).with_name("slow_starts")
_PATIENCE = 60.0


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Starts ``elastic-run``."""
    with Launcher(tmp_path) as launch:
        yield launch


def start(launch: Launcher, log: Path, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    """Starts one that is slow as the environment says; what it prints is in the log."""
    slow = {"PYTHONPATH": str(_SLOW), "RES_OPTIONS": "timeout:1 attempts:1", **environ}
    with log.open("wb") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        return launch(*arguments, environ=slow, **streams)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ctrl_c_ends_a_start_also_while_torch_is_loaded(
    launch: Launcher, tmp_path: Path, nodes: int
) -> None:
    (tmp_path / "train.py").touch()
    words = ("--local-nodes", str(nodes), "train.py")
    command = start(launch, tmp_path / "log", *words, ELASTIC_TEST_IMPORT=str(tmp_path))
    # Each node and its fork server; the command, which hosts the store, does without torch.
    importing = 2 * nodes
    processes.wait_for(
        lambda: len([*tmp_path.glob("importing-*")]) == importing, _PATIENCE, "the imports"
    )
    command.send_signal(signal.SIGINT)
    # One that a signal ends is 130 to a shell as well.
    assert command.wait(_PATIENCE) in (-signal.SIGINT, 128 + signal.SIGINT)
    processes.wait_for(lambda: not processes.marked(launch.mark), _PATIENCE, "no process is left")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_node_that_boots_after_the_end_does_not_begin_anew(
    launch: Launcher, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (tmp_path / "train.py").write_text(
        "import os\nprint('ran on', os.environ['ELASTIC_NODE_NAME'], flush=True)\n"
    )
    options = ("--cold", "--local-nodes", "3", "--min", "2", "--max", "2", "--log-format", "json")
    command = start(launch, log, *options, "train.py", ELASTIC_TEST_LATE="node2")
    processes.wait_for(
        lambda: log.read_text().count('"job.done"') == 2, _PATIENCE, "the end", log.read_text
    )
    (tmp_path / "go").touch()
    assert command.wait(_PATIENCE) == 0
    text = log.read_text()
    assert text.count("ran on") == 2, text
    (over,) = [json.loads(line) for line in text.splitlines() if '"job.over"' in line]
    assert over["node"] == "node2"
