"""The agent's workers: started, signalled and watched through the fork server.

Nothing here blocks the agent. Calls return at once; what follows is reported by ``notify``, from
the one thread that also moves the workers' output, so that everything a worker has printed has
been passed on before its end is reported.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.agent.lifecycle.lifecycle_types import (
    ForkServerExited,
    ForkServerReady,
    WorkerExited,
)
from elastic_runtime.agent.logs.outputs import Outputs
from elastic_runtime.agent.logs.worker_output import Stream
from elastic_runtime.agent.workers import fork_client, fork_server
from elastic_runtime.agent.workers.roster import Roster, Worker, WorkerSpec, WorkerStarted
from elastic_runtime.agent.workers.spawn_request import SpawnRequests
from elastic_runtime.agent.workers.start_retry import (
    StartRetry,
    cause,
    lacks_resources,
    next_retry,
    remedy,
)
from elastic_runtime.config import COMMAND, JobConfig
from elastic_runtime.events import Event
from elastic_runtime.events.worker_events import ForkServerWaits, PreloadFailed, WorkerWaits
from elastic_runtime.limits import (
    MAX_IMPORT_DEATHS,
    START_RETRY_TIMEOUT,
    WARM_START_PAUSES,
    WORKERS_END_TIMEOUT,
)
from elastic_runtime.reporting.json_lines import JSON
from elastic_runtime.system import thread_death, threads
from elastic_runtime.worker import worker_main

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


# What is an ``Event`` is only for people.
WorkerEvent = ForkServerReady | ForkServerExited | WorkerStarted | WorkerExited | Event


class WorkerProcesses:
    """All workers of one agent.

    Args:
        config: the settings.
        notify: called with each event, from a thread of its own; must not block.
        stdout, stderr: descriptors on which the workers' output is shown.
        early: the first fork server, if it has been started already.
        stdin: descriptor that the first worker reads.
    """

    def __init__(
        self,
        config: JobConfig,
        notify: Callable[[WorkerEvent], None],
        stdout: int = 1,
        stderr: int = 2,
        early: fork_client.EarlyForkServer | None = None,
        stdin: int = 0,
    ) -> None:
        self._config = config
        self._early = early
        self._notify = notify
        self._roster = Roster()
        self._calls: deque[Callable[[], None]] = deque()
        self._server: fork_client.ServerProcess | None = None
        self._server_retry: StartRetry | None = None
        self._ready = True
        self._why_cold = ""
        self._import_deaths, self._warm_at = 0, 0.0  # in a row; if too many, when to try again
        self._warm_tries = 0
        self._closing = False
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._output = Outputs(
            self._selector,
            stdout,
            stderr,
            self._wake,
            notify,
            only_events=config.log_format == JSON,
        )
        self._requests = SpawnRequests(config, self._output.consoles, self._output.logs, stdin)
        self._thread = threads.spawn(self._run, name="elastic-workers")

    # ------------------------------------------------------------ what the agent calls

    def start_server(self) -> None:
        """Starts the fork server; ``ForkServerReady`` follows, or ``ForkServerExited``.

        To be called from a thread that runs as long as the agent: the server ends with it until
        it is ready.
        """
        cold = self._config.cold or bool(self._why_cold)
        server = self._early.take() if self._early else None
        try:
            server = server or fork_client.start(self._config, cold=cold)
        except OSError as error:
            if not lacks_resources(error.errno):
                raise
            self._call(partial(self._server_refused, error.errno or 0))
            return
        self._ready = False
        before, self._server = self._server, server
        self._call(partial(self._adopt, server, before))

    def start(self, specs: Sequence[WorkerSpec]) -> None:
        """Starts workers; ``WorkerStarted`` and ``WorkerExited`` follow for each.

        Without a fork server they wait for one.

        Raises:
            UsageError: the function cannot be sent, or the script is gone together with the
                working directory.
        """
        if self._may_be_warm_again():
            self.start_server()
        for spec in specs:
            request, descriptors, streams = self._requests.prepare(spec)
            worker = self._roster.add(spec, request, descriptors, streams)
            self._call(partial(self._begin, worker))

    def _may_be_warm_again(self) -> bool:
        """Whether it is time for another server that imports ahead, if the last ones died of that.

        Only while no worker runs, as they end with their server; cold ones import as long.
        """
        if not self._why_cold or time.monotonic() < self._warm_at:
            return False
        if self.running() or self._roster.dying():
            return False
        self._why_cold = ""
        self._import_deaths = MAX_IMPORT_DEATHS - 1
        return True

    def relabel(self, local_rank: int, rank: int) -> None:
        """Shows the output of a worker under another rank from now on."""
        prefix = self._requests.prefix(local_rank, rank)
        for worker in self._roster.all([local_rank]):
            for stream in worker.streams:
                stream.prefix = prefix
                if stream.events is not None:
                    stream.events = stream.events.with_(rank=rank)

    def stop(
        self,
        grace: float,
        local_ranks: Collection[int] | None = None,
        signum: int = signal.SIGTERM,
        otherwise: int = signal.SIGTERM,
    ) -> None:
        """Asks workers to end, and ends those that have not after ``grace`` seconds.

        Args:
            grace: 0: they are ended at once.
            local_ranks: which ones; None: all.
            signum: the signal that asks them, if they handle it.
            otherwise: the signal for those that do not.
        """
        chosen = self._roster.end_at(time.monotonic() + grace, local_ranks)
        if grace > 0:
            for worker in chosen:
                self._call(partial(self._send_signal, worker.id, signum, otherwise))
        else:
            self._wake()

    def kill(self) -> None:
        """Ends all workers at once."""
        self.stop(0.0)

    def signal(self, local_rank: int, signum: int, otherwise: int | None = None) -> None:
        """Sends a signal to one worker, if it is there.

        Args:
            local_rank: the worker.
            signum: the signal.
            otherwise: the one to send if it does not handle that; 0: none, None: the same.
        """
        sent = signum if otherwise is None else otherwise
        for worker in self._roster.all([local_rank]):
            self._call(partial(self._send_signal, worker.id, signum, sent))

    def abort(self, local_rank: int, grace: float) -> None:
        """Has one worker dump the stacks of its threads (SIGABRT), and ends it after ``grace``."""
        self._roster.end_at(time.monotonic() + grace, [local_rank])
        self.signal(local_rank, signal.SIGABRT)

    def running(self) -> frozenset[int]:
        """Local ranks of the workers whose end has not been reported yet."""
        return frozenset(worker.spec.local_rank for worker in self._roster.all())

    def watch(self, local_rank: int, pid: int, path: str) -> None:
        """From now on, has the end of a worker be reported when it begins, not when it is over.

        Args:
            local_rank: the worker.
            pid: its process, as it says.
            path: see ``thread_death.await_death``.
        """

        def wait(worker: Worker) -> None:
            code = thread_death.await_death(path, pid)
            if code is not None:
                self._call(partial(self._dies, worker, pid, code))

        for worker in self._roster.all([local_rank]):
            with suppress(RuntimeError):  # no thread for it now: its end is noticed later
                threads.spawn(wait, worker, name="worker-death")

    def return_value(self, local_rank: int) -> Any:
        """What the function returned in the last worker of this local rank that ended well.

        It is read from memory that only this process and its own worker have shared; None if
        there is none.
        """
        return self._requests.return_value(local_rank)

    def close(self) -> None:
        """Ends everything, at once, and returns when nothing is left."""
        if self._closing:
            return
        self._closing = True
        if self._server is not None:
            # One that is still importing does not listen yet, but ends; else this does nothing.
            self._server.process.terminate()
        self._call(self._shut_down)
        self._thread.join(WORKERS_END_TIMEOUT)
        if self._thread.is_alive() and self._server is not None:
            self._server.process.kill()
            self._thread.join()
        self._end_by_hand()
        self._output.close()
        self._requests.close()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _end_by_hand(self) -> None:
        """Ends what a thread that has crashed has left running; after its own end nothing is."""
        if self._server is None:
            return
        there = [*self._roster.dying(), *self._roster.all()]
        pids = [worker.pid for worker in there if worker.pid]
        self._server.collect(
            WORKERS_END_TIMEOUT
        )  # which closes its connection: it ends all, and itself
        self._server = None
        fork_client.see_dead(pids)
        for worker in self._roster.all():
            worker.close()

    # ------------------------------------------------------------ the thread

    def _call(self, function: Callable[[], None]) -> None:
        self._calls.append(function)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    def _run(self) -> None:
        while not (self._closing and self._server is None and not self._calls):
            for key, _ in self._selector.select(self._timeout()):
                if isinstance(key.data, Stream):
                    self._output.pump.ready(key.data)
                elif key.data is not None:
                    self._hear(key.data)
                else:
                    with suppress(BlockingIOError):
                        while self._woken.recv(4096):
                            pass
            while self._calls:
                self._calls.popleft()()
            now = time.monotonic()
            self._kill_overdue(now)
            self._replace_silent_server(now)
            self._try_again(now)
            self._output.pump.tick(now)

    def _timeout(self) -> float | None:
        """Seconds until something is due; None: wait for what comes."""
        now = time.monotonic()
        moments = self._roster.moments(WORKERS_END_TIMEOUT)
        if self._server_retry is not None:
            moments.append(self._server_retry.again)
        if self._server is not None:  # else they wait for the next one
            moments += [retry.again for _, retry in self._roster.refused()]
        due = self._output.pump.timeout(now)
        if due is not None:
            moments.append(now + due)
        return max(0.0, min(moments) - now) if moments else None

    def _kill_overdue(self, now: float) -> None:
        for worker in self._roster.overdue(now):
            self._send_signal(worker.id, signal.SIGKILL, signal.SIGKILL)

    def _replace_silent_server(self, now: float) -> None:
        late, server = self._roster.unreported(now, WORKERS_END_TIMEOUT), self._server
        if late and server is not None and server.holds_back([one.pid for one in late]):
            server.process.kill()  # what follows is in ``_lost``

    def _try_again(self, now: float) -> None:
        """Asks the machine once more for what it has refused."""
        if self._closing:
            return
        if self._server_retry is not None and self._server_retry.again <= now:
            self.start_server()
        for worker, retry in self._roster.refused():
            if retry.again <= now:
                self._begin(worker)

    def _adopt(
        self, server: fork_client.ServerProcess, before: fork_client.ServerProcess | None
    ) -> None:
        self._server_retry = None
        if before is not None:
            with suppress(OSError):  # it may be dead by now, and its socket closed
                fork_server.send(before.channel, {"op": "shutdown"})
        self._selector.register(server.channel, selectors.EVENT_READ, server)
        for worker in self._roster.all():
            self._begin(worker)

    def _server_refused(self, number: int) -> None:
        """The machine refuses a fork server: it is asked again, unless it was for too long."""
        before = self._server_retry
        self._server_retry = next_retry(before, time.monotonic())
        if before is None:
            self._notify(ForkServerWaits(cause(number), START_RETRY_TIMEOUT))
        elif self._server_retry is None and self._server is None:
            self._notify(ForkServerExited(f"{cause(number)}: {remedy(number)}", refused=True))

    def _begin(self, worker: Worker) -> None:
        """Asks the fork server for a worker, unless it has been asked.

        Without a server it waits for one; and until the process before it is gone.
        """
        if worker.sent or self._roster.get(worker.id) is None or self._server is None:
            return
        if self._roster.has_predecessor(worker):
            return
        worker.sent = True
        self._send(worker.request, worker.descriptors)

    def _send_signal(self, number: int, signum: int, otherwise: int) -> None:
        worker = self._roster.get(number)
        if worker is None:
            return
        if otherwise:
            worker.signum = otherwise
            if not worker.sent:
                self._ended(worker, worker.exited(-otherwise))
                return
        # A command may be a shell that does not pass a signal on to what it runs.
        group = self._config.entry.kind == COMMAND or signum == signal.SIGKILL
        frame = {"op": "signal", "id": number, "signum": signum, "otherwise": otherwise}
        self._send({**frame, "group": group})

    def _send(self, frame: fork_server.Frame, descriptors: Sequence[int] = ()) -> None:
        # If the server is dead, the next read shows it.
        with suppress(ConnectionError):
            if self._server is not None:
                fork_server.send(self._server.channel, frame, descriptors)

    def _hear(self, server: fork_client.ServerProcess) -> None:
        received = fork_server.receive(server.channel)
        if received is None:
            self._lost(server)
            return
        frame, _ = received
        if frame["op"] == "ready":
            self._ready = True
            self._import_deaths = 0
            modules, skipped = tuple(frame["modules"]), tuple(frame["skipped"])
            for module, _, why in (text.partition(": ") for text in skipped):
                if module in self._config.preload:  # for others the script will report it
                    self._notify(PreloadFailed(module, why))
            self._notify(ForkServerReady(self._why_cold or frame["why_cold"], modules, skipped))
            return
        worker = self._roster.get(frame["id"])
        assert worker is not None
        match frame["op"]:
            case "started":
                worker.pid, worker.began = frame["pid"], time.monotonic()
                worker.close()
                self._output.pump.add(worker.streams)
                spec = worker.spec
                self._notify(
                    WorkerStarted(spec.local_rank, spec.global_rank, spec.round, worker.pid)
                )
            case "start_failed":
                self._not_started(worker, frame["message"], frame["errno"])
            case "exited":
                self._ended(worker, worker.exited(frame["code"], frame["lifetime"]))

    def _not_started(self, worker: Worker, message: str, number: int) -> None:
        """A worker could not be started: that is final, or tried again."""
        if worker.signum or self._closing:  # it is not needed any longer
            self._ended(worker, worker.exited(-(worker.signum or signal.SIGKILL)))
            return
        spec, before = worker.spec, worker.retry
        why = ""
        if lacks_resources(number):
            worker.retry = next_retry(before, time.monotonic())
            worker.sent = worker.retry is None
            if before is None:
                self._notify(WorkerWaits(spec.global_rank, cause(number), START_RETRY_TIMEOUT))
            if worker.retry is not None:
                return
            message = why = f"{cause(number)}: {remedy(number)}"
        error = OSError(f"{self._config.entry.target} cannot be started: {message}")
        worker_main.write_error_file(spec.worker_dir.error_file, error)
        self._ended(worker, worker.exited(127, refused=why))

    def _dies(self, worker: Worker, pid: int, code: int) -> None:
        """A worker's process has begun to end: it does nothing more, and holds what it has."""
        if self._roster.get(worker.id) is not worker or worker.dies or worker.pid != pid:
            return
        # What it leaves behind would keep its sockets open, and hide its death from peers.
        self._send_signal(worker.id, signal.SIGKILL, signal.SIGKILL)
        self._close_output(worker)
        worker.dies = True
        worker.kill_at, worker.killed_at = None, time.monotonic()
        self._notify(worker.exited(code, time.monotonic() - worker.began))

    def _ended(self, worker: Worker, end: WorkerExited) -> None:
        """A worker's process is gone, or there never was one."""
        if worker.dies:
            self._roster.remove(worker)
            for waiting in self._roster.all([worker.spec.local_rank]):
                self._begin(waiting)
            return
        self._close_output(worker)
        self._roster.remove(worker)
        self._notify(end)

    def _close_output(self, worker: Worker) -> None:
        worker.close()
        self._output.finish(worker.streams, worker.spec.worker_dir)

    def _lost(self, server: fork_client.ServerProcess) -> None:
        """The fork server is gone: reports the ends of its workers, and then its own."""
        self._selector.unregister(server.channel)
        if server is not self._server:  # another one has replaced it
            server.collect(WORKERS_END_TIMEOUT)
            return
        self._server = None
        workers = [*self._roster.dying(), *(one for one in self._roster.all() if one.sent)]
        fork_client.see_dead([worker.pid for worker in workers if worker.pid])
        # Other nodes wait for the news of these; the cause of the server's end is not urgent.
        for worker in workers:
            lifetime = time.monotonic() - worker.began
            self._ended(worker, worker.exited(-signal.SIGKILL, lifetime, with_server=True))
        why = server.collect(WORKERS_END_TIMEOUT if self._closing else 1.0)
        if not self._ready:
            self._import_deaths += 1
            if self._import_deaths >= MAX_IMPORT_DEATHS:
                # What kills it each time would do so again: the next one imports nothing.
                self._why_cold = f"the fork server died while it imported modules ({why})"
                self._warm_tries += 1
                self._warm_at = time.monotonic() + WARM_START_PAUSES.pause(self._warm_tries)
        if not self._closing:
            self._notify(ForkServerExited(why))

    def _shut_down(self) -> None:
        for worker in self._roster.all():
            if not worker.sent:
                self._ended(worker, worker.exited(-signal.SIGKILL))
        self._send({"op": "shutdown"})
