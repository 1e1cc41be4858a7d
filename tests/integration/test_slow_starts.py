"""Nodes that are slow to start: a person may give up, and a job may be over before they come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., subprocess.Popen[bytes]]

_SLOW = Path(__file__).with_name("slow_starts")
_PATIENCE = 60.0


def _mark(folder: Path) -> str:
    return f"slow-start-{os.getpid()}-{folder.name}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``elastic-run``; what it prints is in the file ``log``."""
    mark = _mark(tmp_path)
    started: list[subprocess.Popen[bytes]] = []

    def launch(*arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elastic_runtime", *arguments],
                env={
                    **os.environ,
                    **environ,
                    "PYTHONPATH": str(_SLOW),
                    "RES_OPTIONS": "timeout:1 attempts:1",
                    processes.MARKER: mark,
                },
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        return process

    yield launch
    processes.end(mark)
    for process in started:
        process.wait()


@pytest.mark.parametrize("nodes", [1, 2])
def test_ctrl_c_ends_a_start_also_while_torch_is_loaded(
    start: Start, tmp_path: Path, nodes: int
) -> None:
    (tmp_path / "train.py").touch()
    command = start("--local-nodes", str(nodes), "train.py", ELASTIC_TEST_IMPORT=str(tmp_path))
    # Each node and its fork server; the command, which hosts the store, does without torch.
    importing = 2 * nodes
    processes.wait_for(
        lambda: len([*tmp_path.glob("importing-*")]) == importing, _PATIENCE, "the imports"
    )
    command.send_signal(signal.SIGINT)
    # One that a signal ends is 130 to a shell as well.
    assert command.wait(_PATIENCE) in (-signal.SIGINT, 128 + signal.SIGINT)
    mark = _mark(tmp_path)
    processes.wait_for(lambda: not processes.marked(mark), _PATIENCE, "no process is left")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_node_that_boots_after_the_end_does_not_begin_anew(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "train.py").write_text(
        "import os\nprint('ran on', os.environ['ELASTIC_NODE_NAME'], flush=True)\n"
    )
    options = ("--cold", "--local-nodes", "3", "--min", "2", "--max", "2", "--log-format", "json")
    command = start(*options, "train.py", ELASTIC_TEST_LATE="node2")
    processes.wait_for(
        lambda: log.read_text().count('"job.done"') == 2, _PATIENCE, "the end", log.read_text
    )
    (tmp_path / "go").touch()
    assert command.wait(_PATIENCE) == 0
    text = log.read_text()
    assert text.count("ran on") == 2, text
    (over,) = [json.loads(line) for line in text.splitlines() if '"job.over"' in line]
    assert over["node"] == "node2"
