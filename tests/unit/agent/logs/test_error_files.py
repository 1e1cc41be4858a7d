"""Error files of all kinds: the agent outlives them. The launcher's, where it is no plain file."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from elastic_runtime.agent.lifecycle.fault_classification import WorkerError
from elastic_runtime.agent.logs.error_files import failure, read_error_file
from elastic_runtime.agent.logs.launcher_error import ErrorsOfNodes, leave_error
from elastic_runtime.worker import worker_main

if TYPE_CHECKING:
    from pathlib import Path


def body(message: Any, **extra: Any) -> bytes:
    return json.dumps({"message": {"message": message, "extraInfo": extra}}).encode()


BROKEN = {
    "empty": b"",
    "cut off": b"{",
    "list": b"[]",
    "nothing": b"{}",
    "number": b'{"message": 3}',
    "number inside": b'{"message": {"message": 3}}',
    "not UTF-8": b'{"message": "\xff\xfe"}',
    "huge": b'{"message": "' + b"x" * (5 << 20) + b'"}',
    "deep": b"[" * 200_000,
}
STRANGE = {
    "no time": body("ValueError: x"),
    "a time with a fraction": body("ValueError: x", timestamp="12.5"),
    "no time at all": body("ValueError: x", timestamp=[]),
    "not a number": body("ValueError: x", timestamp="nan"),
    "the end of time": body("ValueError: x", timestamp="1e300"),
    "half a character": b'{"message": "\\ud800"}',
    "no dictionary": b'{"message": {"message": "ValueError: x", "extraInfo": 1}}',
}


def described(path: Path) -> str:
    """What torch's table says of a failure whose error file this is."""
    error = read_error_file(str(path))
    found = failure(0, 77, 1, str(path), error)
    return str(ChildFailedError("train.py", {0: found}))


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_as_good_as_none(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(BROKEN[kind])
    assert read_error_file(str(path)) is None
    assert "exitcode  : 1" in described(path)


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_file_is_told_as_far_as_it_can_be(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(STRANGE[kind])
    assert read_error_file(str(path)) is not None
    assert str(path) in described(path)


def test_torchs_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(body("ValueError: x", py_callstack="Traceback …", timestamp="12.5"))
    assert read_error_file(str(path)) == WorkerError("ValueError: x", "Traceback …", 12.5)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "pipe", "nothing"):
        assert "exitcode  : 1" in described(tmp_path / name)


def test_a_worker_writes_its_file_as_a_whole_and_never_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error.json"
    seen: list[bool] = []

    def dump(value: Any, file: Any) -> None:
        file.write(json.dumps(value)[:10])
        file.flush()
        seen.append(path.exists())
        file.write(json.dumps(value)[10:])

    monkeypatch.setattr(json, "dump", dump)
    worker_main.write_error_file(str(path), ValueError("first"))
    worker_main.write_error_file(str(path), ValueError("second"))
    assert seen == [False, True]
    error = read_error_file(str(path))
    assert error is not None
    assert error.message == "ValueError: first"
    assert abs(error.timestamp - time.time()) < 60
    assert os.listdir(tmp_path) == ["error.json"]


@pytest.mark.parametrize(("world", "echo"), [("1", False), ("2", True), (None, False)])
def test_a_worker_says_whether_its_error_is_a_lost_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str | None, echo: bool
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    lost = ValueError("no batch")
    lost.__cause__ = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    own = RuntimeError("my data server data01:9000: Connection refused")
    for name, error in (("lost", lost), ("own", own)):
        worker_main.write_error_file(str(tmp_path / name), error)
    files = [read_error_file(str(tmp_path / name)) for name in ("lost", "own")]
    assert [file and file.echo for file in files] == [echo, False]


def test_no_hard_links_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    worker_main.write_error_file(str(tmp_path / "error.json"), ValueError("x" * 10_000_000))
    error = read_error_file(str(tmp_path / "error.json"))
    assert error is not None
    assert error.message.startswith("ValueError: xxx")


def test_a_full_disk_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    worker_main.write_error_file(str(tmp_path / "error.json"), ValueError("x"))
    assert "No space left" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


# The launcher's


def test_the_launchers_file_is_a_pipe_that_nobody_reads(
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
