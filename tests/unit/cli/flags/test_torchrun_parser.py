"""torchrun's parser without torch: the same one, and torch's own where it cannot be had so."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.flags import torchrun_parser
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    import pytest


def _described(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    return [
        {
            **{name: value for name, value in vars(action).items() if name != "container"},
            "type": getattr(action.type, "__name__", action.type),
            "action": type(action).__name__,
        }
        for action in parser._actions
    ]


def test_the_source_makes_the_parser_that_torch_makes() -> None:
    assert _described(torchrun_parser._from_source()) == _described(torchrun_parser._imported())


def test_a_torch_that_is_written_otherwise_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> argparse.ArgumentParser:
        raise NameError("name 'something_new' is not defined")

    monkeypatch.setattr(torchrun_parser, "_from_source", unknown)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(torchrun_parser, "import_torch", lambda: None)
    parser = torchrun_parser.torchrun_parser()
    assert _described(parser) == _described(torchrun_parser._imported())


def test_torchs_stack_is_not_shown_where_somebody_else_listens() -> None:
    program = """
import datetime, os, socket, sys, threading
from elastic_runtime.cli.flags.torchrun_parser import import_torch
import_torch()
assert "TORCH_CPP_LOG_LEVEL" not in os.environ  # not for workers
from torch.distributed import TCPStore

def greet():
    while True:
        other, _ = server.accept()
        other.sendall(b"SSH-2.0-OpenSSH")

server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=greet, daemon=True).start()
try:
    TCPStore(
        "127.0.0.1", server.getsockname()[1], is_master=False, wait_for_workers=False,
        timeout=datetime.timedelta(seconds=1),
    )
except RuntimeError:
    print("no store")
"""
    environ = {name: os.environ[name] for name in os.environ if name != "TORCH_CPP_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("no store\n", "")


def test_a_command_line_is_read_without_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    program = """
import os, sys
sys.modules["torch.distributed"] = None  # torch itself must be found, not imported
from elastic_runtime.cli.run.job_from_command import read_job
from elastic_runtime.cli.run.elastic_run import Parser, read_settings
parser = Parser()
line = parser.split(["--max", "4", "--nproc-per-node", "2", "--numa-binding", "node", "train.py"])
job = read_job(line, read_settings(parser.options, line.given, {}), {})
assert (job.config.max_nodes, job.config.workers) == (4, 2)
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
