"""Processes that tests and benchmarks start: who belongs to whom, and how all of them are ended.

A process is found by a marker in the environment it was started with, which all its descendants
inherit, also those that left its process group or lost their parent. Only what carries a marker
of ours is ever signalled. Linux only (``/proc``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests import zygote

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

MARKER = "ELASTIC_TEST_MARK"
# Seconds for a program that only imports and looks, beside jobs that share two cores with it: what
# takes 3 s alone took 60 there. Less than the time-out of a test, which ends all tests beside it.
PROGRAM_TIMEOUT = 100.0

_T = TypeVar("_T")
_PROC = Path("/proc")


def elastic_run(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs ``elastic-run`` in a folder to its end; says how it ended, and what it has printed."""
    return zygote.run(
        [sys.executable, "-m", "elastic_runtime", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )


class Launcher:
    """Starts ``elastic-run`` in a folder; all of it has ended at the end of a ``with`` statement.

    Attributes:
        mark: of all its processes.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = f"launched-{uuid.uuid4().hex}"
        self._folder = folder
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.mark)
        for process in self._started:
            process.__exit__(None, None, None)  # waits for it, and closes its pipes

    def __call__(
        self,
        *arguments: object,
        before: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        **streams: Any,
    ) -> subprocess.Popen[Any]:
        """Starts one.

        Args:
            arguments: of ``elastic-run``.
            before: what the command begins with.
            environ: variables beside those of this process.
            streams: as for ``Popen``.
        """
        process = zygote.start(
            [*before, sys.executable, "-m", "elastic_runtime", *map(str, arguments)],
            cwd=self._folder,
            env={**os.environ, **(environ or {}), MARKER: self.mark},
            **streams,
        )
        self._started.append(process)
        return process


class Overdue(AssertionError):
    """Something that should have happened by now has not."""


def marked(mark: str) -> list[int]:
    """The living processes whose marker is ``mark``, or lies below it (``mark/…``)."""
    exact = f"{MARKER}={mark}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for variable in _read(entry / "environ").split(b"\0"):
            if variable == exact or variable.startswith(exact + b"/"):
                if state(int(entry.name)) not in ("", "Z", "X"):
                    found.append(int(entry.name))
                break
    return sorted(found)


def mark_of(pid: int) -> str:
    """The marker of a process, "" if it has none or is gone."""
    for variable in _read(_PROC / str(pid) / "environ").split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARKER.encode():
            return value.decode()
    return ""


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; nothing if it is gone, or not ours."""
    entries = _read(_PROC / str(pid) / "environ").decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def state(pid: int) -> str:
    """The state of a process as one letter (``R``, ``S``, ``T``, ``Z``, …), "" if it is gone."""
    status = _stat(pid)
    return status[0] if status else ""


def parent(pid: int) -> int:
    """The parent of a process, 0 if the process is gone."""
    status = _stat(pid)
    return int(status[1]) if status else 0


def ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on up to the first of all."""
    line = []
    while pid:
        line.append(pid)
        pid = parent(pid)
    return line


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used so far, its children's not counted."""
    status = _stat(pid)
    if not status:
        return 0.0
    return (int(status[11]) + int(status[12])) / os.sysconf("SC_CLK_TCK")


def command(pid: int) -> str:
    """The command line of a process, for messages."""
    return _read(_PROC / str(pid) / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def fork_server(agent: int, pids: Iterable[int]) -> int:
    """The fork server of an agent, 0 if it has none; its workers are forks of it and look like it.

    Args:
        agent: the agent's process.
        pids: where to look, such as ``marked(...)``.
    """
    for pid in pids:
        if parent(pid) == agent and "fork_server import main" in command(pid):
            return pid
    return 0


def send(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def show_workers(mark: str, script: str, patience: float = 2.0) -> None:
    """Has all workers of a job say where they are, for a test that waits in vain.

    They end with it, and their stacks are where their errors go, in the time given.

    Args:
        mark: of the job.
        script: what the workers run.
        patience: seconds.
    """
    for pid in marked(mark):
        if script in command(pid) and "elastic_runtime" not in command(pid):
            send([pid], signal.SIGABRT)
    time.sleep(patience)  # it is for people, and the test has failed already


def end(mark: str, patience: float = 60.0) -> None:
    """Kills everything that carries ``mark``, and returns when nothing is left.

    Raises:
        Overdue: something is left after ``patience`` seconds.
    """

    def none_left() -> bool:
        left = marked(mark)
        send(left, signal.SIGKILL)
        return not left

    wait_for(none_left, patience, f"the end of all processes marked {mark}")


def wait_for(
    happened: Callable[[], _T],
    patience: float,
    what: str,
    story: Callable[[], str] = lambda: "",
    pause: float = 0.02,
) -> _T:
    """Looks again and again until ``happened`` returns something true.

    For what lies in files and in ``/proc``, which cannot be waited for in one way together.

    Args:
        happened: what is looked at.
        patience: seconds.
        what: named if it does not happen.
        story: what to show then; logs, for example.
        pause: seconds between two looks.

    Returns:
        What ``happened`` returned.

    Raises:
        Overdue: it did not happen in time.
    """
    deadline = time.monotonic() + patience
    while True:
        result = happened()
        if result:
            return result
        if time.monotonic() > deadline:
            raise Overdue(f"not within {patience:g} s: {what}\n{story()}".rstrip())
        time.sleep(pause)


def descriptors(pid: int) -> list[str]:
    """What a process has open, each as the target of its link in ``/proc``."""
    found = []
    with suppress(OSError):
        for link in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(link))
    return found


def _stat(pid: int) -> list[str]:
    # The name, in parentheses, may hold spaces and parentheses itself.
    return _read(_PROC / str(pid) / "stat").decode(errors="replace").rpartition(")")[2].split()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
