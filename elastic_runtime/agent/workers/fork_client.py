"""The agent's end of the fork server: starts the process, and learns how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import POLLIN, poll
from typing import TYPE_CHECKING, Self

from elastic_runtime.agent.workers import fork_server
from elastic_runtime.agent.workers.start_retry import lacks_resources
from elastic_runtime.config import FUNCTION, MODULE
from elastic_runtime.endpoint import PASSWORD_VARIABLE
from elastic_runtime.limits import SERVER_END_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elastic_runtime.config import JobConfig

# States of a process; "": there is none.
_STOPPED, _DEAD = ("T", "t"), ("Z", "")
# What asks an agent to leave, where it is told so, and ends any process that does not know it.
_NOT_THEIRS = frozenset({signal.SIGUSR1, signal.SIGUSR2})


@dataclass(frozen=True)
class ServerProcess:
    """A running fork server.

    Attributes:
        process: the process.
        channel: the socket to it.
        complaints: memory that holds what it has written to standard error.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    complaints: int

    def holds_back(self, killed: Sequence[int]) -> bool:
        """Whether it is stopped or hangs, so that it does not report the ends of workers.

        A worker that cannot end, as it waits in the kernel, is no fault of the server.

        Args:
            killed: processes that were killed some time ago, and were not reported; 0: not started.
        """
        if state_of(self.process.pid) in _STOPPED:
            return True
        return any(state_of(pid) in _DEAD for pid in killed if pid)

    def collect(self, patience: float) -> str:
        """Waits for its end, or brings it about.

        Args:
            patience: seconds to wait before it is killed.

        Returns:
            What it ended with, for people.
        """
        self.channel.close()
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        text = os.pread(self.complaints, 1 << 16, 0).decode(errors="replace").strip()
        os.close(self.complaints)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{how}: {text.splitlines()[-1]}" if text else how


class EarlyForkServer:
    """A fork server that is started before its agent, so that both import torch at the same time.

    As a context, it ends a server that no agent has taken.

    Args:
        config: the settings; of the endpoint nothing is needed yet.
    """

    def __init__(self, config: JobConfig) -> None:
        self._server: ServerProcess | None = None
        # If the machine refuses it, the agent deals with that when it starts its own.
        try:
            self._server = start(config, cold=config.cold)
        except OSError as error:
            if not lacks_resources(error.errno):
                raise

    def take(self) -> ServerProcess | None:
        """Hands the server over; None if somebody has it already."""
        server, self._server = self._server, None
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if server := self.take():
            server.collect(0.0)


def start(config: JobConfig, *, cold: bool) -> ServerProcess:
    """Starts a fork server with the environment that workers need at their imports.

    Args:
        config: the settings.
        cold: it is to import nothing ahead.

    Raises:
        OSError: the machine refuses another process.
    """
    ours, theirs = socket.socketpair()
    complaints = os.memfd_create("elastic-forkserver")
    package = Path(__file__).parents[3]
    command = [
        sys.executable,
        "-u",
        "-c",
        fork_server.BOOTSTRAP,
        str(package),
        str(theirs.fileno()),
    ]
    with theirs, _blocked(_NOT_THEIRS):  # in the server, too, until it knows what to do with them
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env=environment_without_secrets(config, os.environ),
                pass_fds=(theirs.fileno(),),
                cwd="/"
                if is_homeless()
                else None,  # oneMKL loads nothing in a directory that is gone
                start_new_session=True,
            )
        except OSError:  # it will be tried again
            ours.close()
            os.close(complaints)
            raise
    with suppress(ConnectionError):  # its death is noticed when it is listened to
        fork_server.send(ours, _settings(config, cold))
    return ServerProcess(process, ours, complaints)


@contextmanager
def _blocked(signals: frozenset[signal.Signals]) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def state_of(pid: int) -> str:
    """The state of a process as in ``/proc/PID/stat`` (T: stopped, Z: dead); "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]  # the name before may have spaces and brackets


def is_homeless() -> bool:
    """Whether the working directory of this process was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def working_directory() -> str:
    """The working directory of this process: a path that works also when it was removed."""
    return f"/proc/{os.getpid()}/cwd" if is_homeless() else os.getcwd()


def environment_without_secrets(config: JobConfig, env: Mapping[str, str]) -> dict[str, str]:
    """An environment for workers, and for the server that imports in their stead.

    As under torchrun, several workers do not each take all cores unless that is asked for. The
    password of the store stays with the agent: workers have nothing to ask there.
    """
    threads = {"OMP_NUM_THREADS": "1"} if config.workers > 1 else {}
    return {**threads, **{n: value for n, value in env.items() if n != PASSWORD_VARIABLE}}


def _settings(config: JobConfig, cold: bool) -> fork_server.Frame:
    entry = config.entry
    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    script = main if entry.kind == FUNCTION else entry.target
    here = working_directory()
    beside = os.path.dirname(os.path.realpath(os.path.join(here, script)))
    return {
        "agent": os.getpid(),
        "kind": entry.kind,
        "target": entry.target,
        "script": os.path.normpath(os.path.join(here, script)) if script else "",
        "root": here if entry.kind == MODULE else beside,
        "python": "" if entry.python == sys.executable else entry.python,
        "cold": cold,
        "preload": config.preload,
        "not_theirs": sorted({signal.Signals[name] for name in config.signals} & _NOT_THEIRS),
    }


def see_dead(workers: Sequence[int]) -> None:
    """Ends the process groups of a dead server's workers, and waits for these to be dead.

    They follow the server by themselves; what they have exec'ed does not.

    Args:
        workers: their processes.
    """
    for pid in workers:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for pid in workers:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except OSError:  # an old kernel, or too many open files: they are dead in a moment
            _see_dead_by_looking(pid)
            continue
        watch = poll()
        watch.register(handle, POLLIN)
        watch.poll(SERVER_END_TIMEOUT * 1000)
        os.close(handle)


def _see_dead_by_looking(pid: int) -> None:
    deadline = time.monotonic() + SERVER_END_TIMEOUT
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)  # there is no handle, and the process is no child of ours
