"""The workers of an agent: each one from the moment that its start is asked for until its process
is gone. May be used from any thread."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.lifecycle_types import WorkerExited

if TYPE_CHECKING:
    from collections.abc import Collection

    from elastic_runtime.agent.logs.log_directory import WorkerDir
    from elastic_runtime.agent.logs.worker_output import Stream
    from elastic_runtime.agent.workers.fork_server import Frame
    from elastic_runtime.agent.workers.start_retry import StartRetry


@dataclass(frozen=True)
class WorkerSpec:
    """One worker to be started.

    Attributes:
        local_rank, global_rank: its ranks.
        round: the round that it is started for.
        env: its whole environment.
        worker_dir: its directory.
    """

    local_rank: int
    global_rank: int
    round: int
    env: dict[str, str] = field(repr=False)
    worker_dir: WorkerDir


@dataclass(frozen=True)
class WorkerStarted:
    """A worker's process exists."""

    local_rank: int
    global_rank: int
    round: int
    pid: int


@dataclass(eq=False)
class Worker:
    """One worker.

    Attributes:
        id: its number at the fork server.
        spec: what was asked for.
        streams: its output.
        request, descriptors: what the fork server is sent; kept until it has started.
        began: when it was started; until then: when its start was asked for.
        sent: the fork server has the request.
        retry: the machine has refused to start it.
        pid: its process.
        kill_at: when it is to be ended.
        killed_at: when it was sent SIGKILL, while its end has not been reported.
        signum: the last signal that it was sent; one that has never started ends of it.
        dies: its end was reported, and its process is about to be gone.
    """

    id: int
    spec: WorkerSpec
    streams: list[Stream]
    request: Frame
    descriptors: list[int]
    began: float
    sent: bool = False
    retry: StartRetry | None = None
    pid: int = 0
    kill_at: float | None = None
    killed_at: float | None = None
    signum: int = 0
    dies: bool = False

    def exited(
        self, code: int, lifetime: float = 0.0, *, with_server: bool = False, refused: str = ""
    ) -> WorkerExited:
        """The report of its end; see ``WorkerExited``."""
        spec = self.spec
        return WorkerExited(
            spec.round,
            spec.local_rank,
            code,
            pid=self.pid,
            lifetime=lifetime,
            with_server=with_server,
            refused=refused,
        )

    def close(self) -> None:
        """Closes what only its start needs."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Roster:
    """All workers of one agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[int, Worker] = {}  # by their number
        self._numbers = 0

    def add(
        self, spec: WorkerSpec, request: Frame, descriptors: list[int], streams: list[Stream]
    ) -> Worker:
        """Gives a worker its number, also in the request, and a place.

        Args:
            spec, request, descriptors, streams: see ``Worker``.
        """
        with self._lock:
            self._numbers += 1
            request["id"] = self._numbers
            worker = Worker(
                self._numbers, spec, streams, request, descriptors, began=time.monotonic()
            )
            self._workers[worker.id] = worker
        return worker

    def remove(self, worker: Worker) -> None:
        """Forgets one that is gone."""
        with self._lock:
            del self._workers[worker.id]

    def get(self, number: int) -> Worker | None:
        """The worker with this number; None if it is gone."""
        with self._lock:
            return self._workers.get(number)

    def all(self, local_ranks: Collection[int] | None = None) -> list[Worker]:
        """All workers whose end was not reported, or those of them with these local ranks."""
        with self._lock:
            return [
                worker
                for worker in self._workers.values()
                if not worker.dies
                and (local_ranks is None or worker.spec.local_rank in local_ranks)
            ]

    def dying(self) -> list[Worker]:
        """Those whose end was reported, and whose process is not gone yet."""
        with self._lock:
            return [worker for worker in self._workers.values() if worker.dies]

    def has_predecessor(self, worker: Worker) -> bool:
        """Whether the process before this one still holds what both need, such as a GPU."""
        return any(one.spec.local_rank == worker.spec.local_rank for one in self.dying())

    def end_at(self, deadline: float, local_ranks: Collection[int] | None = None) -> list[Worker]:
        """Has workers be overdue at this moment, unless they are earlier.

        Args:
            deadline: seconds on the monotonic clock.
            local_ranks: which ones; None: all.

        Returns:
            These workers.
        """
        chosen = self.all(local_ranks)
        with self._lock:
            for worker in chosen:
                worker.kill_at = min(worker.kill_at or deadline, deadline)
        return chosen

    def overdue(self, now: float) -> list[Worker]:
        """Those that are to be ended by now; each is named once."""
        with self._lock:
            found = [
                w for w in self._workers.values() if w.kill_at is not None and w.kill_at <= now
            ]
            for worker in found:
                worker.kill_at, worker.killed_at = None, now
        return found

    def unreported(self, now: float, patience: float) -> list[Worker]:
        """Those that were killed so long ago, and whose end was not reported; each once in a while.

        Args:
            now: seconds on the monotonic clock.
            patience: seconds from the signal, or from the last time that it was named here.
        """
        late = [one for one in (*self.dying(), *self.all()) if one.killed_at is not None]
        late = [one for one in late if (one.killed_at or 0.0) + patience <= now]
        for worker in late:
            worker.killed_at = now
        return late

    def refused(self) -> list[tuple[Worker, StartRetry]]:
        """Those that the machine has refused to start, and that are to be tried again."""
        workers = [worker for worker in self.all() if not worker.sent]
        return [(worker, worker.retry) for worker in workers if worker.retry is not None]

    def moments(self, patience: float) -> list[float]:
        """When workers are to be ended, and when the ends of those are late (``unreported``)."""
        workers = [*self.dying(), *self.all()]
        late = [worker.killed_at + patience for worker in workers if worker.killed_at is not None]
        return [worker.kill_at for worker in workers if worker.kill_at is not None] + late
