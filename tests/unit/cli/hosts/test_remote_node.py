"""The far end of a node: what it is told, and what the end of its connection means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.hosts.remote_node import BEGINS, CUT_OFF, KILL, LEAVE, environment
from elastic_runtime.errors import EXIT_LEFT, EXIT_USAGE
from tests.unit.cli.hosts.far_machines import order, put_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0
FAR_END = [sys.executable, "-m", "elastic_runtime.cli.hosts.remote_node"]
# In the place of elastic-run: says what it is asked to do.
NODE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit(5)))
print("node", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory whose ``elastic_runtime`` is such a program, and no more."""
    put_node(tmp_path, NODE)
    return tmp_path


def _start(package: Path, changes: str = "") -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    far_end = f"from elastic_runtime.cli.hosts import remote_node as r; {changes}exit(r.main())"
    command = [sys.executable, "-c", far_end] if changes else FAR_END
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    process.stdin.write(json.dumps(order(package, "n0")).encode() + b"\n")
    process.stdin.flush()
    return process


def _close(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip()


@pytest.fixture
def far_end(package: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = _start(package)
    assert (_line(process), _line(process)) == (BEGINS, "node")
    yield process
    _close(process)


def test_there_is_one_node_at_a_time(far_end: subprocess.Popen[bytes], package: Path) -> None:
    other = _start(package)
    try:
        assert other.stderr is not None
        assert other.stderr.readline().startswith(b"waiting for another node of this run on this")
        far_end.kill()  # and its node dies with it
        assert (_line(other), _line(other)) == (BEGINS, "node")
    finally:
        _close(other)


def test_nothing_is_left_on_the_machine(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(package))
    far_end = _start(package)
    try:
        assert (_line(far_end), _line(far_end)) == (BEGINS, "node")
        assert [*package.glob("elastic-node-*")]
        other = _start(package)
        try:
            assert other.stderr is not None
            other.stderr.readline()  # it waits
            assert far_end.stdin is not None
            far_end.stdin.write(LEAVE)
            far_end.stdin.flush()
            assert far_end.wait(PATIENCE) == EXIT_LEFT
            assert (_line(other), _line(other)) == (BEGINS, "node")
            assert [*package.glob("elastic-node-*")]  # its own, and not the one that it waited for
            assert other.stdin is not None
            other.stdin.close()
            other.wait(PATIENCE)
        finally:
            _close(other)
    finally:
        _close(far_end)
    assert not [*package.glob("elastic-node-*")]


def test_a_link_of_another_user_is_not_followed(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(package))
    lock = order(package, "n0")["lock"]
    (package / f"elastic-node-{os.getuid()}-{lock}").symlink_to(package / "elsewhere")
    far_end = _start(package)
    try:
        assert far_end.wait(PATIENCE) == EXIT_USAGE
        assert not (package / "elsewhere").exists()
    finally:
        _close(far_end)


def test_who_waits_for_the_former_node_may_be_asked_to_leave(
    far_end: subprocess.Popen[bytes], package: Path
) -> None:
    other = _start(package)
    try:
        assert other.stdin is not None
        other.stdin.write(LEAVE)
        other.stdin.flush()
        assert other.wait(PATIENCE) == EXIT_LEFT
    finally:
        _close(other)


def test_a_near_end_that_says_nothing_more_is_gone(package: Path) -> None:
    silent = _start(package, "r.SILENCE = 1.0; ")
    try:
        assert (_line(silent), _line(silent), _line(silent)) == (BEGINS, "node", "asked")
        assert silent.wait(PATIENCE) == CUT_OFF  # not as one that somebody has asked to leave
    finally:
        _close(silent)


def test_the_environment_is_that_of_both_ends() -> None:
    theirs = {"PATH": "near", "HF_HOME": "x", "SSH_AUTH_SOCK": "y", "TERM": "z", "PWD": "p"}
    ours = {"PATH": "far", "HOME": "/far"}
    assert environment(theirs, ours) == {"PATH": "far", "HOME": "/far", "HF_HOME": "x"}


@pytest.mark.parametrize("word", [LEAVE, b""])
def test_a_word_asks_the_node_to_leave_and_so_does_the_end_of_all_words(
    far_end: subprocess.Popen[bytes], word: bytes
) -> None:
    assert far_end.stdin is not None
    assert far_end.stdout is not None
    if word:
        far_end.stdin.write(word)
        far_end.stdin.flush()
    else:
        far_end.stdin.close()
    assert far_end.stdout.readline() == b"asked\n"
    assert far_end.wait(PATIENCE) == (EXIT_LEFT if word else CUT_OFF)


def test_a_word_ends_the_node(far_end: subprocess.Popen[bytes]) -> None:
    assert far_end.stdin is not None
    far_end.stdin.write(KILL)
    far_end.stdin.flush()
    assert far_end.wait(PATIENCE) == 128 + signal.SIGKILL


def test_no_hang_up_ends_it_before_its_node(far_end: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        far_end.send_signal(number)
    assert far_end.stdin is not None
    far_end.stdin.close()
    assert far_end.wait(PATIENCE) == CUT_OFF


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "no order for a node has come"),
        (b"hello\n", "no order for a node has come"),
        (
            json.dumps({"directory": "/nowhere", "arguments": [], "environment": {}}).encode(),
            "/nowhere: No such file or directory: a job has the same directory on all",
        ),
    ],
)
def test_what_is_no_order_is_said(line: bytes, said: str) -> None:
    done = subprocess.run(FAR_END, input=line, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == EXIT_USAGE
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""
