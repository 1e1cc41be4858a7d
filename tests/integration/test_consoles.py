"""``elastic-run`` whose standard error nobody reads, or can be written to, or is there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.errors import EXIT_DONE, EXIT_LEFT, EXIT_NOT_ENOUGH_NODES
from tests.integration.test_launch import PROGRAM
from tests.processes import Launcher, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.users_start

_SCRIPT = """
import os, pathlib, sys, time
node = os.environ["ELASTIC_NODE_NAME"]
pathlib.Path(f"started-{node}").touch()
print("on stderr", "x" * 100_000, file=sys.stderr, flush=True)
while len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("through", flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``elastic-run`` with these arguments and this standard error."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    environ = {"ELASTIC_LAST_CALL": "0", "ELASTIC_GRACE": "5", "ELASTIC_COLD": "1"}
    with Launcher(tmp_path) as launch, (tmp_path / "stdout").open("wb") as stdout:

        def run(*arguments: str, stderr: int | None = None, before: Sequence[str] = ()) -> Any:
            streams = {"stdout": stdout, "stderr": stderr}
            return launch(*arguments, before=before, environ=environ, **streams)

        yield run


def await_workers(folder: Path, nodes: str) -> None:
    """Waits until the worker of each node has started."""
    wait_for(lambda: len(list(folder.glob("started-*"))) == int(nodes), 300, "the start of all")


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that takes nothing, though it has a reader."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_job_ends_whose_standard_error_is_stuck(
    start: Start, full_pipe: int, tmp_path: Path, nodes: str
) -> None:
    job = start("--local-nodes", nodes, "--min", nodes, "train.py", stderr=full_pipe)
    assert job.wait(timeout=100) == EXIT_DONE
    assert (tmp_path / "stdout").read_bytes().count(b"through") == int(nodes)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_job_leaves_on_request_whose_standard_error_is_stuck(
    start: Start, full_pipe: int, tmp_path: Path, nodes: str
) -> None:
    job = start("--local-nodes", nodes, "--min", nodes, "train.py", "never", stderr=full_pipe)
    await_workers(tmp_path, nodes)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=100) == EXIT_LEFT


def test_a_usage_error_keeps_its_exit_code_on_a_stuck_standard_error(
    start: Start, full_pipe: int
) -> None:
    assert start("nowhere.py", stderr=full_pipe).wait(timeout=100) == 2


_TOO_FEW = ("--min", "2", "--max", "2", "--join-timeout", "0.5", "train.py")


def test_a_full_disk_under_standard_error_replaces_no_exit_code(start: Start) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    job = start(*_TOO_FEW, stderr=descriptor)
    os.close(descriptor)
    assert job.wait(timeout=100) == EXIT_NOT_ENOUGH_NODES


def test_a_reader_that_has_gone_replaces_no_exit_code(start: Start) -> None:
    reading, writing = os.pipe()
    job = start(*_TOO_FEW, stderr=writing)
    os.close(writing)
    os.close(reading)
    assert job.wait(timeout=100) == EXIT_NOT_ENOUGH_NODES


def test_last_words_are_there_and_come_last(start: Start, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("wb") as stderr:
        job = start(*_TOO_FEW, stderr=stderr.fileno())
    assert job.wait(timeout=100) == EXIT_NOT_ENOUGH_NODES
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert '"job.join_command"' in lines[0]
    assert lines[-1].startswith("elastic-run: ")


_CLOSED = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_job_that_is_started_without_standard_streams(
    start: Start, tmp_path: Path, nodes: str
) -> None:
    job = start("--local-nodes", nodes, "--min", nodes, "train.py", "go", before=_CLOSED)
    await_workers(tmp_path, nodes)
    for descriptor in range(3):
        assert os.readlink(f"/proc/{job.pid}/fd/{descriptor}") == os.devnull
    (tmp_path / "go").touch()
    assert job.wait(timeout=100) == EXIT_DONE


def test_a_function_that_is_launched_without_standard_streams(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [*_CLOSED, sys.executable, "program.py", "square"], cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0
