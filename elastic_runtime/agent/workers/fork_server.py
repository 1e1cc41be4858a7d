"""The fork server: the one parent of an agent's workers, warm or cold.

It is exec'ed fresh, with the environment that workers need when torch is imported
(``OMP_NUM_THREADS`` and its like are read once, at import, and cannot be changed in a fork). It
imports what the script will import, and from then on a worker is a fork of it: ready in
milliseconds instead of seconds. It stays single-threaded and never computes, because a process
that has entered an OpenMP region, or has started a thread, makes a poor parent.

It speaks with its agent over a socket pair, in frames of JSON with descriptors beside them::

    agent → server    start {id, args, env, cwd, cpus} + stdin, stdout, stderr [, payload, result]
                      signal {id, signum, otherwise, group}
                      shutdown {}
    server → agent    ready {modules, skipped, warm, why_cold}
                      started {id, pid} | start_failed {id, message, errno}
                      exited {id, pid, code, lifetime}

Nothing outlives it: it is the reaper of everything below it, ends the process group of each dead
worker, and ends everything when the agent is gone. Workers in turn follow it into its own death.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from elastic_runtime.config import COMMAND, FUNCTION, MODULE
from elastic_runtime.worker import worker_main

Frame = dict[str, Any]
Work = Callable[[], None]

# ``python -c``: the working directory does not come first on the path (a file there could hide a
# module of ours); a package that is not installed is the one the agent has.
BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    " sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]);"
    " from elastic_runtime.agent.workers.fork_server import main; main()"
)

_HEADER = struct.Struct("!I")
_MOST_DESCRIPTORS = 8
_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 5.0


def send(channel: socket.socket, body: Frame, descriptors: Sequence[int] = ()) -> None:
    """Sends one frame, with copies of the descriptors.

    Args:
        channel: a connected Unix stream socket.
        body: plain JSON values.
        descriptors: at most 8; they stay open here.
    """
    text = json.dumps(body).encode()
    data = _HEADER.pack(len(text)) + text
    sent = socket.send_fds(channel, [data], descriptors) if descriptors else channel.send(data)
    channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[Frame, list[int]] | None:
    """Receives one frame; None if the other end is gone."""
    try:
        head, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, _MOST_DESCRIPTORS)
        head += _exactly(channel, _HEADER.size - len(head)) if head else b""
        if not head:
            return None
        body: Frame = json.loads(_exactly(channel, *_HEADER.unpack(head)))
    except (ConnectionError, EOFError):
        return None
    return body, descriptors


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


@dataclass
class _Child:
    """One child of the server: its number at the agent, when it began, its handle if exec'ed."""

    id: int
    began: float
    process: subprocess.Popen[bytes] | None = None


class Server:
    """Starts, signals and reaps workers until its agent is gone or has had enough."""

    def __init__(self, channel: socket.socket, settings: Frame) -> None:
        """Takes over the process: its signals, and the children of its children.

        Args:
            channel: the socket to the agent.
            settings: ``agent`` (its process id), ``kind``, ``target``, ``python``, ``cold``,
                ``preload``, ``root`` and ``not_theirs`` (signals for the agent).
        """
        self._channel = channel
        self._settings = settings
        self._warm = False
        self._workers: dict[int, _Child] = {}  # by process id
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        # Handlers that do nothing: what wakes the loop is the byte that each signal writes.
        self._handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self, *, warm: bool) -> Work | None:
        """Serves the agent.

        Args:
            warm: workers are forks of this process.

        Returns:
            None at the end; in a forked worker, what it is to do once it has left this stack.
        """
        self._warm = warm
        while True:
            self._selector.select()
            if os.getppid() != self._settings["agent"]:
                self._end_all()
                return None
            self._drain_wakeups()
            self._reap()
            if not self._readable():
                continue
            frame = receive(self._channel)
            if frame is None or frame[0]["op"] == "shutdown":
                self._end_all()
                return None
            work = self._obey(*frame)
            if work is not None:
                return work

    def _readable(self) -> bool:
        return any(key.fileobj is self._channel for key, _ in self._selector.select(0))

    def _drain_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _obey(self, request: Frame, descriptors: list[int]) -> Work | None:
        try:
            if request["op"] == "start":
                return self._start(request, descriptors)
            self._signal(request)
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _start(self, request: Frame, descriptors: list[int]) -> Work | None:
        worker = _Child(request["id"], time.monotonic())
        try:
            if self._warm:
                pid = self._fork()
                if pid == 0:
                    return self._become_worker(request, descriptors)
            else:
                worker.process = self._execute(request, descriptors)
                pid = worker.process.pid
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or 0
            refusal = {
                "op": "start_failed",
                "id": worker.id,
                "message": str(error),
                "errno": number,
            }
            self._tell(refusal)
            return None
        self._workers[pid] = worker
        self._tell({"op": "started", "id": worker.id, "pid": pid})
        return None

    def _fork(self) -> int:
        # A signal must find either the server's handlers or the worker's, nothing in between: the
        # worker lifts the mask when it has put its own in place.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = -1
        try:
            pid = os.fork()
            return pid
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _become_worker(self, request: Frame, descriptors: list[int]) -> Work:
        """Turns this fresh fork into a worker; nothing of the server is left in it."""
        try:
            server = os.getppid()
            worker_main.die_with(server)
            os.setsid()
            copies = [os.dup(descriptor) for descriptor in descriptors]
            standard, rest = copies[:3], copies[3:]
            for number, copy in enumerate(standard):
                os.dup2(copy, number)
                os.close(copy)
            # Not the one that has looked at what the server has there.
            found = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
            sys.stdin = sys.__stdin__ = found  # type: ignore[misc]
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._selector.close()
            for end in (self._channel, self._woken, self._wake):
                end.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.chdir(request["cwd"])
            _fresh_state(request["env"])
            if request["cpus"]:
                os.sched_setaffinity(0, request["cpus"])
            kind, target = self._settings["kind"], self._settings["target"]
            _show_as([sys.executable, "-u", target, *request["args"]])
            if kind == FUNCTION:
                return partial(worker_main.run_function, *rest)
            return partial(worker_main.run, kind, target, request["args"])
        except BaseException as error:
            _fail(f"the worker cannot start: {error}")

    def _execute(self, request: Frame, descriptors: list[int]) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr, *rest = descriptors
        server = os.getpid()

        def follow() -> None:
            worker_main.die_with(server)
            if request["cpus"]:
                os.sched_setaffinity(0, request["cpus"])

        return subprocess.Popen(
            self._command(request["args"], rest),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=request["env"],
            cwd=request["cwd"],
            pass_fds=rest,
            start_new_session=True,
            # This process has a single thread, so that running Python in the child is safe.
            preexec_fn=follow,
        )

    def _command(self, args: list[str], descriptors: list[int]) -> list[str]:
        kind, target, python = (self._settings[name] for name in ("kind", "target", "python"))
        if kind == COMMAND:
            return [target, *args]
        if python:  # another interpreter, as torchrun's PYTHON_EXEC
            return [python, "-u", *(["-m"] if kind == MODULE else []), target, *args]
        beginning = [sys.executable, "-u", worker_main.__file__, kind]
        if kind == FUNCTION:
            return [*beginning, *map(str, descriptors)]
        return [*beginning, target, *args]

    def _signal(self, request: Frame) -> None:
        """Sends a signal to the workers that handle it; if none does, the other signal to all."""
        signum, otherwise, group = (request[name] for name in ("signum", "otherwise", "group"))
        for pid, known in self._workers.items():
            if known.id != request["id"]:
                continue
            with suppress(ProcessLookupError):
                there = _group(pid) if group and signum != otherwise else [pid]
                catching = [one for one in there if signum != otherwise and _catches(one, signum)]
                for one in catching:
                    os.kill(one, signum)
                if not catching and otherwise and not (group and _signal_group(pid, otherwise)):
                    os.kill(pid, otherwise)

    def _reap(self) -> None:
        """Collects all that have ended, workers and what they have left behind."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            worker = self._workers.pop(ended.si_pid, None)
            if worker is not None:
                # Before the dead worker gives up its number, which is its group's as well. A child
                # of its that lived on would keep its sockets open, and hide the death from peers.
                _signal_group(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if worker is not None:
                self._report(worker, ended.si_pid, os.waitstatus_to_exitcode(status))

    def _report(self, worker: _Child, pid: int, code: int) -> None:
        if worker.process is not None:
            worker.process.returncode = code
        self._tell(
            {
                "op": "exited",
                "id": worker.id,
                "pid": pid,
                "code": code,
                "lifetime": time.monotonic() - worker.began,
            }
        )

    def _tell(self, frame: Frame) -> None:
        # A dead agent shows itself when its socket is read.
        with suppress(ConnectionError):
            send(self._channel, frame)

    def _end_all(self) -> None:
        """Kills everything below this process, also what has left its worker's group."""
        self._selector.unregister(self._channel)
        deadline = time.monotonic() + _END_SECONDS
        while (children := _children()) and time.monotonic() < deadline:
            for pid in children:
                _signal_group(pid, signal.SIGKILL)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._selector.select(0.05)  # until one of them is reported dead
            self._drain_wakeups()
            self._reap()


def _children() -> list[int]:
    own = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]


def _group(leader: int) -> list[int]:
    """The processes of a group."""
    found = []
    for entry in os.scandir("/proc"):
        with suppress(ValueError, ProcessLookupError):
            if os.getpgid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


def _catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal; see proc(5)."""
    with suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name == "SigCgt":
                return bool(int(value, 16) >> (signum - 1) & 1)
    return False


def _signal_group(leader: int, signum: int) -> bool:
    try:
        os.killpg(leader, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _fresh_state(env: dict[str, str]) -> None:
    """Gives a fork what must not be the same in two processes, or as in the server.

    What libraries have read from the environment at their import stays as the server had it.
    """
    import multiprocessing.process

    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    os.environ.update((name, value) for name, value in env.items() if os.environ.get(name) != value)
    time.tzset()
    with suppress(FileNotFoundError):  # it was removed while the job ran
        multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    multiprocessing.process.current_process().authkey = os.urandom(32)
    # Python's own generator reseeds itself after a fork; NumPy's does not.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _show_as(command: Sequence[str]) -> None:
    """Makes ``ps`` and its like show a fork as what it runs, as if it had been started so."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    size = end - start - 1
    text = b"\0".join(os.fsencode(part) for part in command)[:size]
    ctypes.memmove(start, text.ljust(size, b"\0"), size)


def _fail(message: str) -> NoReturn:
    os.write(2, f"{message}\n".encode(errors="replace"))
    os._exit(1)


def _prepare(settings: Frame) -> Frame:
    """Imports what workers will need, and tells how that went, as a ``ready`` frame."""
    if settings["cold"] or settings["kind"] == COMMAND or settings["python"]:
        return {"op": "ready", "modules": [], "skipped": [], "why_cold": "", "warm": False}
    from elastic_runtime.agent.workers import preload

    root = settings["root"]
    script = settings["script"]
    if settings["kind"] == MODULE:
        script = str(preload.source_of(settings["target"], Path(root)) or "")
    done = preload.preload(script, root, settings["preload"])
    return {
        "op": "ready",
        "modules": done.modules,
        "skipped": done.skipped,
        "why_cold": done.why_cold,
        "warm": not done.why_cold,
    }


def main() -> None:
    """Runs the server in a fresh process; its arguments are the package's place and the socket.

    Its standard output and error are the agent's to choose; workers get their own.
    """
    channel = socket.socket(fileno=int(sys.argv[2]))
    first = receive(channel)
    if first is None:
        return
    settings, _ = first
    # Until the loop runs, the default action of the signal ends the server with its agent; then
    # the loop looks who has died: a thread of the agent that has started the server may end.
    worker_main.die_with(settings["agent"], signal.SIGTERM)
    worker_main.libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _outlive(settings["not_theirs"], settings["kind"])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.argv = ["elastic-forkserver"]
    ready = _prepare(settings)
    server = Server(channel, settings)
    with suppress(ConnectionError):
        send(channel, ready)
    work = server.serve(warm=ready["warm"])
    del server
    if work is None:
        os._exit(0)  # what imported modules do at their exit is for workers to do
    _do(work)


def _outlive(signals: Sequence[int], kind: str) -> None:
    """Has the server and its workers outlive signals that are for their agent.

    Slurm may send them to all processes of a node. A worker that handles one does so.
    """
    for number in signals:
        # A shell cannot handle what it was started to ignore; exec forgets a handler.
        signal.signal(number, (lambda *_: None) if kind == COMMAND else signal.SIG_IGN)


def _do(work: Work) -> None:
    """Does a forked worker's work, and then ends the process without taking it apart.

    Others wait for that end, and finalization would copy all the memory that is shared with the
    server.
    """
    from elastic_runtime.worker.fast_exit import exit_fast

    try:
        work()
    except SystemExit as end:
        # As Python reads it: nothing is 0, a number is itself, anything else is printed and 1.
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
        exit_fast(code & 0xFF)
        raise
    except KeyboardInterrupt:
        exit_fast(-signal.SIGINT)
        raise
    except Exception:
        exit_fast(1)
        raise
    exit_fast(0)
