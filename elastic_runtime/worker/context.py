"""A worker's end of the channel to its agent: the only client of the agent in a worker process.

Without an agent (under plain torchrun, or alone in one process) everything here works and does
nothing, except that events go to the ``elastic_runtime`` logger. A process that a worker forks or
spawns is no worker: it never sends messages for its parent.

Nothing here needs torch.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import RecordError, UsageError
from elastic_runtime.events.event import ERROR, WARNING
from elastic_runtime.events.round_events import StepFirst
from elastic_runtime.limits import AGENT_ANSWER_TIMEOUT, AGENT_READ_TIMEOUT
from elastic_runtime.protocol.messages import (
    ENV_CHANNEL,
    ENV_DEATH,
    ENV_INCARNATION,
    ENV_PROGRESS,
    ENV_ROUND,
    ENV_SERIAL,
    MAX_LINE,
    Change,
    Dismiss,
    Hello,
    Leave,
    Message,
    Note,
    ProgressFile,
    decode,
)
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS, SnapshotMemory
from elastic_runtime.protocol.unix_path import address_of
from elastic_runtime.system import thread_death
from elastic_runtime.system.repeated_signals import StopRequest
from elastic_runtime.system.torch_version import AUTO, ENV_REGROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_runtime.events.event import NotedEvent

_LOG = logging.getLogger("elastic_runtime")

# Messages that ask a worker to leave its round, or to end.
_LEAVE = (Leave, Change, Dismiss)
# What makes a process a worker, and none of its children.
_OF_AGENT = (ENV_CHANNEL, ENV_DEATH, ENV_PROGRESS, ENV_SNAPSHOTS)


class WorkerContext:
    """What this process is in its job, and the way to its agent.

    Attributes:
        rank: global rank, 0 outside a job.
        round: the round that it takes part in, 0 without an agent.
        incarnation: the incarnation of the job that the round belongs to, "" without an agent.
        run: the id of the run, "" outside a job.
        restarts: how often workers of the job had been started again when this one was started.
        leave_requested: set once this worker is asked to save and leave, at a step that all ranks
            agree on.
        regroup: how ranks regroup in place, as in ``--regroup``.
        in_place: ``elastic.run`` is under way, which makes all groups and ends them.
        was_in_place: it is over, and all groups have ended.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads who this process is; the agent is called when there is something to say.

        Args:
            environ: the environment that the agent has set for the worker.
        """
        self.rank = int(environ.get("RANK") or 0)
        self.round = int(environ.get(ENV_ROUND) or 0)
        self.incarnation = environ.get(ENV_INCARNATION, "")
        self.run = environ.get("TORCHELASTIC_RUN_ID", "")
        self.restarts = int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self._channel_path = environ.get(ENV_CHANNEL, "")
        # Without an agent nothing regroups.
        self.regroup = (environ.get(ENV_REGROUP) if self._channel_path else "") or AUTO
        self._progress_path = environ.get(ENV_PROGRESS, "")
        self._progress: ProgressFile | None = None
        self._steps = 0
        self._inner = 0  # steps that were made alone
        self._told_first = False  # of the first step of this round
        self.in_place = False
        self.was_in_place = False
        self._in_train = False
        self._busy: list[str] = []
        self._accepts_leave = False
        self.leave_requested = threading.Event()
        self._death_path = environ.get(ENV_DEATH, "")
        self._watched = False
        self._serial = int(environ.get(ENV_SERIAL) or 0)
        self._listener: Callable[[Message], None] | None = None
        self._snapshots = environ.get(ENV_SNAPSHOTS, "")
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._handler: Callable[[int, Any], None] | None = None  # of SIGTERM
        self._request: StopRequest | None = None
        self._waits_for_agent = False
        self._asked_to_leave_at = float("-inf")
        self._ends = False  # as its agent has said

    @property
    def has_agent(self) -> bool:
        """An elastic agent has started this worker."""
        return bool(self._channel_path)

    @property
    def snapshots(self) -> SnapshotMemory | None:
        """The agent's memory for snapshots, if there is an agent, and it has any."""
        return SnapshotMemory.decode(self._snapshots) if self._snapshots else None

    def accept_leave_requests(self) -> None:
        """Tells the agent that this worker can save and leave at the end of a step.

        Without an agent the request is a SIGTERM, unless the program handles that itself; a
        second one that does not follow at once ends the process as usual.
        """
        self._accepts_leave = True
        if self.has_agent:
            self.shield()
        else:
            self._catch_sigterm(self._on_sigterm)

    def shield(self) -> None:
        """Connects to the agent, and ignores a SIGTERM that does not come from the agent.

        Slurm and others signal a whole tree of processes. The agent is asked to leave then, and has
        its workers leave at a step that all ranks agree on; until then they are needed. If the
        agent sends no such request, only this process was meant, and it ends by the signal. A
        program that handles SIGTERM itself keeps its handler.
        """
        self._catch_sigterm(self._on_outer_sigterm)
        if self._death_path and threading.current_thread() is threading.main_thread():
            self._watched = thread_death.hold(self._death_path)
            self._death_path = ""
        self._send(self._hello())

    def refuse_leave_requests(self) -> None:
        """From now on a request to leave ends this process at once, as it did at the start."""
        self._accepts_leave = False
        if self.has_agent:
            self._release_sigterm()
            self._send(self._hello())
        elif self._release_sigterm() and self.leave_requested.is_set():
            signal.raise_signal(signal.SIGTERM)  # it came too late for a step to honour it

    def report_step(self, step: int) -> None:
        """Publishes that ``step`` is done: a few stores to memory that the agent has mapped."""
        self._steps += 1
        self._tell_first(step)
        if (progress := self._progress_file()) is not None:
            progress.publish(step, self._steps, time.monotonic_ns())

    def report_inner(self, step: int, inner: int) -> None:
        """Publishes how many inner steps this rank has made alone since ``step``.

        For whoever looks whether this rank goes on they are steps, and for nobody else.
        """
        self._inner += 1
        self._tell_first(step + 1)
        if (progress := self._progress_file()) is not None:
            progress.keep(step, inner, self._inner, time.monotonic_ns())

    def _tell_first(self, step: int) -> None:
        if not self._told_first and self.has_agent:
            self._told_first = True
            self.note(StepFirst(step))  # the agent tells people how long a recovery took

    @contextmanager
    def running_in_place(self) -> Iterator[None]:
        """While the block runs ``elastic.run`` does, once in a process."""
        self.in_place = True
        try:
            yield
        finally:
            self.in_place, self.was_in_place = False, True

    @contextmanager
    def in_train(self) -> Iterator[None]:
        """While the block runs steps are to be expected: ``train`` of a round in place."""
        self._in_train = True
        self._expect()
        try:
            yield
        finally:
            self._in_train = False
            self._expect()

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """While the block runs no step is to be expected.

        Args:
            what: for people, such as ``evaluation``.
        """
        self._busy.append(what)
        self._expect()
        try:
            yield
        finally:
            self._busy.remove(what)
            self._expect()

    @property
    def busy_with(self) -> str:
        """What the script says that it does, "" if nothing."""
        return next(iter(self._busy[-1:]), "")  # other threads change it

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Hands every message of the agent to ``listener``, in the channel's thread.

        Args:
            listener: must not block.
        """
        self._listener = listener

    def enter(self, round_number: int, rank: int, incarnation: str) -> None:
        """Says which round this process takes part in from now on, and as which rank."""
        self.round, self.rank, self.incarnation = round_number, rank, incarnation
        self._steps, self._inner, self._told_first = 0, 0, False

    def tell(self, message: Message) -> None:
        """Sends a message to the agent, if there is one."""
        if self.has_agent:
            self._send(message)

    def note(self, event: NotedEvent, /) -> None:
        """Reports an event to the agent, or to Python's log if there is none."""
        fields = event.fields()
        if self.has_agent:
            self._send(Note(name=event.name, rank=self.rank, round=self.round, fields=fields))
        else:
            # Only what is grave is shown by Python without further ado.
            grave = "problem" in fields or event.level in (WARNING, ERROR)
            _LOG.log(logging.WARNING if grave else logging.INFO, "%s %s", event.name, fields)

    def note_once(self, event: NotedEvent, /) -> None:
        """The same for a program that has nothing else to say: nothing of it stays.

        Args:
            event: for the agent.
        """
        known = self._socket is not None
        self.note(event)
        if not known:
            self._hang_up()

    def _hang_up(self) -> None:
        """Ends the connection to the agent, and the thread that listens to it."""
        with self._lock, suppress(OSError):
            line, self._socket = self._socket, None
            if line is not None:
                line.shutdown(socket.SHUT_RDWR)
                line.close()

    @property
    def knows_steps(self) -> bool:
        """The program reports its steps, or ``elastic.run`` does."""
        return bool(self._steps) or self.in_place

    def close(self) -> None:
        """Lets go of the channel and of SIGTERM, for a process that is a worker no more.

        The channel is not shut down: after a fork the parent still uses it.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._release_sigterm()

    # The channel

    def _hello(self) -> Hello:
        return Hello(
            rank=self.rank,
            round=self.round,
            pid=os.getpid(),
            drains=self._accepts_leave,
            life=self._serial,
            shielded=self._handler is not None,
            watched=self._watched,
        )

    def _send(self, message: Message) -> None:
        # An agent that cannot be reached is gone, and will take this worker with it: nothing
        # that a step of training could do about it.
        with self._lock, suppress(OSError):
            fresh = self._socket is None
            line = self._connected()
            if fresh and not isinstance(message, Hello):
                line.sendall(self._hello().encode())
            line.sendall(message.encode())

    def _connected(self) -> socket.socket:
        if self._socket is None:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.settimeout(AGENT_READ_TIMEOUT)
            try:
                with address_of(self._channel_path) as address:
                    line.connect(address)
            except OSError:
                line.close()
                raise
            self._socket = line
            listener = threading.Thread(
                target=self._listen, args=(line,), name="elastic-channel", daemon=True
            )
            listener.start()
        return self._socket

    def _listen(self, line: socket.socket) -> None:
        pending = b""
        while len(pending) <= MAX_LINE:
            try:
                data = line.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for one in lines:
                self._handle(one)

    def _handle(self, data: bytes) -> None:
        try:
            message = decode(data)
        except RecordError as error:
            _LOG.warning("%s", error)
            return
        if isinstance(message, _LEAVE):
            self._asked_to_leave_at = time.monotonic()
            self._ends |= not isinstance(message, Change) or message.goes
        if isinstance(message, Leave) and message.round == self.round:
            self.leave_requested.set()
        elif self._listener is not None:
            self._listener(message)

    def _expect(self) -> None:
        """Publishes since when a step is to be expected; the hang time-out counts from there."""
        if (progress := self._progress_file()) is not None:
            since = ProgressFile.BUSY if self._busy else time.monotonic_ns()
            progress.expect(since if self._in_train else 0)

    def _progress_file(self) -> ProgressFile | None:
        if self._progress is None and self._progress_path:
            self._progress = self._open_progress()
        return self._progress

    def _open_progress(self) -> ProgressFile | None:
        try:
            return ProgressFile(self._progress_path)
        except OSError as error:
            _LOG.warning("steps are not reported: %s: %s", self._progress_path, error.strerror)
            self._progress_path = ""
            return None

    # Signals and forks

    def _on_sigterm(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self._request is None:
            self._request = StopRequest(number, now)
            self.leave_requested.set()
        elif not self._request.repeated_by(number, now):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    def _on_outer_sigterm(self, number: int, frame: object) -> None:
        if not self._waits_for_agent:
            self._waits_for_agent = True
            threading.Thread(
                target=self._await_agent,
                args=(time.monotonic(),),
                name="elastic-sigterm",
                daemon=True,
            ).start()

    def _await_agent(self, signalled: float) -> None:
        time.sleep(AGENT_ANSWER_TIMEOUT)
        self._waits_for_agent = False
        # Whoever is leaving is told so once, and may need longer than until the next signal.
        if not self._ends and self._asked_to_leave_at < signalled - AGENT_ANSWER_TIMEOUT:
            ctypes.CDLL(None).signal(signal.SIGTERM, 0)  # signal.signal is for the main thread
            os.kill(os.getpid(), signal.SIGTERM)

    def _catch_sigterm(self, handler: Callable[[int, Any], None]) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and multiprocessing.parent_process() is None
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, handler)
            self._handler = handler

    def _release_sigterm(self) -> bool:
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return False  # only the main thread can
        if signal.getsignal(signal.SIGTERM) == self._handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handler = None
        return True


_context: WorkerContext | None = None


def context() -> WorkerContext:
    """The context of this process, made when it is first asked for."""
    global _context
    if _context is None:
        is_worker = multiprocessing.parent_process() is None
        _context = WorkerContext(os.environ if is_worker else _without_agent(os.environ))
    return _context


def spares_groups() -> bool:
    """Whether ``destroy_process_group()`` must do nothing, as ``elastic.run`` has ended all groups.

    Raises:
        UsageError: ``elastic.run`` is under way, and needs them.
    """
    here = context()
    if here.in_place:
        raise UsageError(
            "destroy_process_group() was called inside of elastic.run, which makes the process "
            "group itself, and ends it after train: remove the call"
        )
    return here.was_in_place


def _without_agent(environ: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k not in _OF_AGENT}


def _forget_parent() -> None:
    global _context
    if _context is not None:
        _context.close()
        _context = WorkerContext(_without_agent(os.environ))


os.register_at_fork(after_in_child=_forget_parent)
