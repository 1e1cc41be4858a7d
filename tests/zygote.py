"""Starts ``elastic-run`` as a fork of a process that has imported torch, for tests of other things.

A job of one node costs five seconds of processor time, nine tenths of them two imports of torch:
the agent's, and its fork server's. A test that is about neither calls :func:`start` or :func:`run`
instead of those of ``subprocess``. Each process that runs tests has one zygote, which has imported
torch and the agent's modules. An agent is a fork of it; the agent's first fork server is a fork of
both, made before the agent has threads.

As users start: tests marked ``users_start``, fork servers that replace another one,
and whatever has variables that Python or torch read at their start.

What no fork shows: what a module would have to import itself, what differs with the hash seed from
node to node, the number of OpenMP's threads (it is 1), what torch prints while it is loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ROOT = Path(__file__).parents[1]
# Of what subprocess.Popen takes, what a fork can be given as well.
_UNDERSTOOD = {"cwd", "env", "stdin", "stdout", "stderr", "text", "start_new_session"}
# What Python and the libraries read while they are loaded: a fork has what the zygote has. One
# thread for OpenMP is what tests want.
_READ_AT_START = (
    *("PYTHON", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_"),
    *("LD_", "MALLOC_", "MKL_", "LANG", "LC_", "LOGLEVEL", "TZ"),
)
# Bytes for the arguments and the environment of a fork, written over those of the zygote.
_ROOM = 1 << 15
_FRAME = 1 << 18
# In the commands of the processes that an agent starts and that import torch.
_OURS = ("fork_server import main", "elastic_runtime.cli.run.local_node")
_LOCAL_NODES = "--local-nodes"
_DESCRIPTORS = 8
# Of this process, as the zygote has it.
_environment = dict(os.environ)
_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_SIGNATURE = inspect.signature(_execute)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts a command, as a fork of the zygote if it is one of ours, or ``python SCRIPT``.

    Args:
        command: the command and its arguments.
        **options: of ``subprocess.Popen``.
    """
    words = list(command)
    kind = _Forked if _zygote.takes(words, options) else subprocess.Popen
    return kind(words, **options)


def run(
    command: Sequence[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Runs a command to its end as :func:`start` does; else as ``subprocess.run``.

    Args:
        command: the command and its arguments.
        timeout: seconds, after which it is killed.
        check: whether another exit code than 0 is an error.
        **options: of ``subprocess.Popen``, and ``capture_output``.

    Raises:
        subprocess.CalledProcessError: see ``check``.
        subprocess.TimeoutExpired: it has not ended in time.
    """
    if options.pop("capture_output", False):
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with start(command, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(list(command), process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def take_environment() -> None:
    """Takes what libraries have set by now for what a fork finds: otherwise nothing would be forked
    in a process that has imported Lightning. What a test sets later is another environment."""
    _environment.clear()
    _environment.update(os.environ)


def start_as_users_do(exec_only: bool) -> None:
    """Whether everything is started, and nothing forked, from now on."""
    _zygote.idle = exec_only


def processor_seconds() -> float:
    """What the forks of this process's zygote have used that were waited for."""
    return _zygote.used


# ------------------------------------------------------------------ where the tests run


class _Client:
    """The zygote of this process, begun when it is needed for the first time."""

    def __init__(self) -> None:
        self.idle = False
        self.used = 0.0
        self._channel: socket.socket | None = None

    def takes(self, command: list[str], options: Mapping[str, Any]) -> bool:
        """Whether a fork would be as good as a start."""
        program = command[:1] == [sys.executable] and (
            command[1:3] == ["-m", "elastic_runtime"] or command[1].endswith(".py")
        )
        if self.idle or not program or not _UNDERSTOOD >= {*options}:
            return False
        env = options.get("env") or os.environ
        fits = max(map(_size, (command, _lines(env)))) < _ROOM
        return fits and _read_at_start(env) == _read_at_start(_environment)

    def fork(self, request: dict[str, Any], standard: Sequence[int]) -> tuple[socket.socket, int]:
        """Has it fork; returns where the fork's end will be told, and the fork."""
        if self._channel is None:
            self._channel = self._begin()
        end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                _send(self._channel, request, [*standard, theirs.fileno()])
            told, _ = _receive(end)
            return end, told["pid"]
        except BaseException:  # a test's time-out among others: the next test begins another zygote
            end.close()
            self._channel.close()
            self._channel = None
            raise

    @staticmethod
    def _begin() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"from tests.zygote import Zygote; Zygote({theirs.fileno()}).serve()()"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code, "_" * _ROOM],
                env={**_environment, "OMP_NUM_THREADS": "1", "ROOM": "_" * _ROOM},
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        atexit.register(process.wait)
        atexit.register(ours.close)  # before the other
        return ours


_zygote = _Client()


class _Forked(subprocess.Popen[Any]):
    """A process as ``subprocess.Popen`` has it, whose parent is the zygote."""

    def _execute_child(self, *given: Any) -> None:
        request, standard = _requested(self, given)
        self._end, self.pid = _zygote.fork(request, standard)
        _started(self, given)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        try:
            text = self._end.recv(_FRAME, socket.MSG_DONTWAIT if flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._end.close()
        if not text:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            raise RuntimeError(f"the zygote is gone, and how process {self.pid} ends is not known")
        told = json.loads(text)
        _zygote.used += told["used"]
        return self.pid, told["status"]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                self.wait(0)
        return self.returncode


# ------------------------------------------------------------------ the zygote


class Zygote:
    """The process that forks. It has one thread, and ends with the process that runs tests.

    Args:
        number: its end of the socket, a descriptor.
    """

    def __init__(self, number: int) -> None:
        import elastic_runtime.agent.agent
        import elastic_runtime.agent.launch
        import elastic_runtime.cli.run.elastic_run  # noqa: F401
        from elastic_runtime.agent.workers import preload

        for name in preload.ALWAYS:
            importlib.import_module(name)
        self._channel = socket.socket(fileno=number)
        self._forks: dict[int, socket.socket] = {}
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        gc.freeze()

    def serve(self) -> Callable[[], object]:
        """Returns at the end, and in each fork, with what is to be done when this stack is left."""
        while True:
            readable, _, _ = select.select([self._channel, self._woken], [], [])
            with suppress(BlockingIOError):
                while self._woken.recv(_FRAME):
                    pass
            self._reap()
            if self._channel not in readable:
                continue
            try:
                request, [*standard, number] = _receive(self._channel)
            except EOFError:
                return lambda: None
            end = socket.socket(fileno=number)
            pid = os.fork()
            if pid == 0:
                self._leave()
                return partial(_run, request, standard, end)
            for number in standard:
                os.close(number)
            self._forks[pid] = end

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self._channel, self._woken, self._wake, *self._forks.values()):
            one.close()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                with self._forks.pop(pid) as end, suppress(ConnectionError):
                    _send(end, {"status": status, "used": usage.ru_utime + usage.ru_stime})


def _run(request: dict[str, Any], descriptors: Sequence[int], ready: socket.socket) -> None:
    """Does in this fork what was asked for, as if it had been started so.

    Args:
        request: what was asked for.
        descriptors: the standard ones, and those passed on.
        ready: where it is told that the fork has all that a started process has.
    """
    _become(request, descriptors)
    with ready:
        _send(ready, {"pid": os.getpid()})
    what, *args = request["args"][2 if request["args"][1] == "-u" else 1 :]
    if what == "-c":
        code, *args = args
        sys.path[0], sys.argv = "", [what, *args]
        exec(code, {"__name__": "__main__"})
    elif what == "-m":
        _run_agent(*args)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.realpath(what)), [what, *args]
        runpy.run_path(what, run_name="__main__")


def _run_agent(module: str, *args: str) -> None:
    """Runs a module, with forks of its own for what it will start."""
    agent = os.getpid()
    waiting: list[tuple[socket.socket, int]] = []
    for _ in range(_forks_of(args)):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for one in (ours, *(channel for channel, _ in waiting)):
                one.close()
            _wait(theirs, agent)
            return
        theirs.close()
        waiting.append((ours, pid))
    _hand_over(waiting)
    sys.path[0], sys.argv = os.getcwd(), [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _forks_of(args: Sequence[str]) -> int:
    """How many processes that import torch an agent will start: its fork server, or nodes."""
    for word, after in zip(args, (*args[1:], ""), strict=True):
        name, _, value = word.partition("=")
        if name == _LOCAL_NODES and (value or after).isdigit():
            return int(value or after)
    return 1


def _hand_over(waiting: list[tuple[socket.socket, int]]) -> None:
    """What this process starts of our programs are to be the forks that wait for that."""

    def execute(process: Any, *given: Any) -> None:
        ours = any(mark in arg for mark in _OURS for arg in given[0][:4])
        while ours and waiting:
            channel, process.pid = waiting.pop(0)
            # It may have been killed with its agent's group.
            with channel, suppress(ConnectionError, EOFError):
                _send(channel, *_requested(process, given))
                _receive(channel)
                _started(process, given)
                return
        _execute(process, *given)

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _wait(channel: socket.socket, agent: int) -> None:
    """In a fork that waits: becomes what its agent asks for, or ends with it."""
    from elastic_runtime.worker.worker_main import die_with

    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    die_with(agent)
    try:
        request, descriptors = _receive(channel)
    except EOFError:
        os._exit(0)
    die_with(agent, 0)
    _run(request, descriptors, channel)


# ------------------------------------------------------------------ what both ends know


def _requested(process: Any, given: Sequence[Any]) -> tuple[dict[str, Any], list[int]]:
    """What a ``subprocess.Popen`` is to execute, and its descriptors: the standard ones first."""
    names = _SIGNATURE.bind(process, *given).arguments
    ends = (names["p2cread"], names["c2pwrite"], names["errwrite"])
    standard = [number if end == -1 else end for number, end in enumerate(ends)]
    request = {
        "passed": names["pass_fds"],
        "args": [os.fspath(arg) for arg in names["args"]],
        "cwd": os.fspath(names["cwd"] or os.getcwd()),
        "env": dict(names["env"] or os.environ),
        "session": names["start_new_session"],
        "group": names["process_group"],
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    return request, [*standard, *names["pass_fds"]]


def _started(process: Any, given: Sequence[Any]) -> None:
    process._child_created = True
    process._close_pipe_fds(*given[10:16])


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    numbers = [0, 1, 2, *request["passed"]]
    copies = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for one in descriptors]
    for number, copy in zip(numbers, copies, strict=True):
        os.dup2(copy, number)
    for one in {*copies, *descriptors} - {*numbers}:
        os.close(one)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    _write_over(int(fields[45]), int(fields[46]), request["args"])
    _write_over(int(fields[47]), int(fields[48]), _lines(request["env"]))
    ours: Any = sys.stdout
    unbuffered = ours.write_through or request["args"][1:2] == ["-u"]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr, unbuffered)  # type: ignore[misc]
    tempfile.tempdir = None
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def _stream(number: int, like: Any, unbuffered: bool) -> io.TextIOWrapper:
    """A standard stream of this fork, as Python would have made it."""
    raw = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)
    by_line = not unbuffered and (number == 2 or os.isatty(number))
    return io.TextIOWrapper(
        raw, like.encoding, like.errors, line_buffering=by_line, write_through=unbuffered
    )


def _write_over(begin: int, end: int, words: Sequence[str]) -> None:
    size = end - begin - 1
    text = b"\0".join(map(os.fsencode, words))
    ctypes.memmove(begin, text[:size].ljust(size, b"\0"), size)


def _lines(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _size(words: Sequence[str]) -> int:
    return sum(len(os.fsencode(word)) + 1 for word in words)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}
    if found.get("PYTHONPATH") == str(_ROOT):  # where workers find the package anyway
        del found["PYTHONPATH"]
    return found


def _send(channel: socket.socket, body: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(channel, [json.dumps(body).encode()], descriptors)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, descriptors, _, _ = socket.recv_fds(channel, _FRAME, _DESCRIPTORS)
    if not text:
        raise EOFError("the other end is gone; a zygote says why on standard error")
    body: dict[str, Any] = json.loads(text)
    return body, descriptors
