"""The launcher's error file, where it cannot be replaced."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from elastic_runtime.agent.logs.launcher_error import ErrorsOfNodes, leave_error

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_pipe_that_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    leave_error("ValueError: x")
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert f"the error file {path} cannot be written" in capsys.readouterr().err


def test_of_several_nodes_the_one_whose_worker_failed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have heard that rank 2 has failed, or have failed because of that."""
    path = tmp_path / "error.json"
    lefts = {"node0": (5.0, 0), "node1": (7.0, 1), "node2": (6.0, -11)}
    with ErrorsOfNodes({"TORCHELASTIC_ERROR_FILE": str(path)}) as errors:
        for node, (moment, code) in lefts.items():
            environ = errors.environ(node)
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", environ["TORCHELASTIC_ERROR_FILE"])
            leave_error("TrainingFailed: x", moment=moment, code=code)
        errors.hand_on([*lefts, "node3"])
    assert json.loads(path.read_text())["message"]["errorCode"] == -11


def test_a_pipe_and_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(path)
    link.symlink_to(path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(link))
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    leave_error("ValueError: x", traceback="as Python prints it", moment=12.5, code=3)
    assert json.loads(os.read(reading, 4096)) == {
        "message": {
            "message": "ValueError: x",
            "extraInfo": {"py_callstack": "as Python prints it", "timestamp": "12"},
            "errorCode": 3,
        }
    }
    os.close(reading)
    assert {*os.listdir(tmp_path)} == {"pipe", "link"}
