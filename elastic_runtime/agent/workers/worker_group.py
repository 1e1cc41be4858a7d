"""All that an agent does with its workers: starting them, talking to them, knowing their steps.

``Workers`` starts and ends processes, ``Channel`` carries lines; here the two meet, and a process
becomes "the worker with this local rank". What a process says after it was replaced is dropped.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch.distributed import TCPStore

from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER, classify
from elastic_runtime.agent.lifecycle.hang_detection import Pulse
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    WorkerDrains,
    WorkerExited,
    WorkerHeard,
    WorkerLeft,
    WorkerReady,
    WorkerReturned,
)
from elastic_runtime.agent.logs.error_files import failure, read_error_file
from elastic_runtime.agent.logs.log_directory import LogDirs
from elastic_runtime.agent.round_keys import forget_rounds, key_of
from elastic_runtime.agent.workers import worker_processes
from elastic_runtime.agent.workers.worker_channel import Channel
from elastic_runtime.agent.workers.worker_environment import PortKeeper, worker_environment
from elastic_runtime.events.node_events import PrivateLost, ProgressOff
from elastic_runtime.protocol.messages import (
    EXIT_DRAINED,
    Ask,
    Change,
    Dismiss,
    Drain,
    Enter,
    Heard,
    Hello,
    Interrupt,
    Left,
    Message,
    Nearby,
    Note,
    ProgressFile,
    Ready,
    Returned,
)
from elastic_runtime.protocol.records import KILLED, NO_ROOM, START
from elastic_runtime.system import threads
from elastic_runtime.system.listening import Where, way_to
from elastic_runtime.worker.worker_main import write_error_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from elastic_runtime.agent.lifecycle.lifecycle_types import Event
    from elastic_runtime.agent.logs.log_directory import Place
    from elastic_runtime.agent.runtime_dir import PrivateDirectory
    from elastic_runtime.agent.workers.fork_client import Ahead
    from elastic_runtime.config import JobConfig
    from elastic_runtime.protocol.records import RoundRecord

# Between the request for a stack dump and SIGKILL, in seconds.
_DUMP_SECONDS = 1.0
# The stores of so many members are worth a connection ahead of a fault.
_SPARES = 3


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message of a worker, on its way to the main loop."""

    life: int
    message: Message


@dataclass
class _Post:
    """One local rank, and the process that holds it at present."""

    life: int
    rank: int  # global
    started_for: int  # round
    progress: ProgressFile
    place: Place
    ended_for: str = ""  # why we have ended it
    shielded: bool = False  # a SIGTERM of somebody else's does not end it


class Crew:
    """The workers of one node.

    Args:
        config: the settings.
        private: the agent's own directory.
        extra: what workers need in their environment beyond the usual.
        put: takes what workers and their server have to say, from other threads.
        where: to listen with the store of a job in place.
        ahead: the first fork server, if it has been started already.
        snapshots: this node's memory for snapshots, as workers are told of it.
    """

    def __init__(
        self,
        config: JobConfig,
        private: PrivateDirectory,
        extra: Callable[[], Mapping[str, str]],
        put: Callable[[Any], None],
        where: Where,
        ahead: Ahead | None = None,
        snapshots: str = "",
    ) -> None:
        self._snapshots = snapshots
        self._where = where
        self._config = config
        self._private = private
        self._extra = extra
        self._logs = LogDirs(config, private.path)
        self._workers = worker_processes.Workers(config, put, ahead=ahead)
        self._channel = Channel(
            os.path.join(private.path, "agent.sock"), lambda life, said: put(FromWorker(life, said))
        )
        self._ports = PortKeeper()
        self._store: TCPStore | None = None
        self._put = put
        self._posts: dict[int, _Post] = {}  # by local rank
        self._without_progress: set[int] = set()  # local ranks
        self._lives = 0
        self._values: dict[int, Any] = {}
        self.failures: dict[int, ProcessFailure] = {}
        self._failed: dict[int, Place] = {}

    # ------------------------------------------------------------ processes

    def start_server(self) -> None:
        """Starts the fork server."""
        self._workers.start_server()

    def start(self, last: RoundRecord, group_rank: int) -> None:
        """Starts all workers for a round in which they live and die."""
        self.failures, self._failed, self._values = {}, {}, {}
        if group_rank == 0:
            self._ports.release()
        for post in self._posts.values():
            post.progress.close()
        self._posts = {}
        self.boot(last, group_rank, range(self._config.workers))

    def boot(self, last: RoundRecord, group_rank: int, local_ranks: Iterable[int]) -> None:
        """Starts workers; in place their ranks are provisional until they enter a round.

        Args:
            last: the round that their environment shows.
            group_rank: this node's rank in it.
            local_ranks: which ones.
        """
        self._restore()
        specs = []
        for local_rank in local_ranks:
            self._lives += 1
            life = self._lives
            rank = last.first_worker(group_rank) + local_rank
            place = self._logs.place(last.number, rank)
            old = self._posts.get(local_rank)
            if old is not None:
                old.progress.close()
            path, progress = self._progress_file(local_rank)
            self._posts[local_rank] = _Post(life, rank, last.number, progress, place)
            environment = worker_environment(
                self._config,
                last,
                group_rank,
                local_rank,
                error_file=place.error_file,
                progress_file=path,
                channel=self._channel.path,
                life=life,
                snapshots=self._snapshots,
            )
            environment.update(self._extra())
            specs.append(
                worker_processes.WorkerSpec(
                    local_rank=local_rank,
                    global_rank=rank,
                    round=last.number,
                    env=environment,
                    place=place,
                )
            )
        self._workers.start(specs)

    def _restore(self) -> None:
        """Makes again what somebody has removed of the private directory, for those who start."""
        try:
            self._private.renew()
            self._channel.renew()
        except OSError as error:
            why = error.strerror or str(error)
            self._put(PrivateLost(self._private.path, why))

    def _progress_file(self, local_rank: int) -> tuple[str, ProgressFile]:
        """Makes the progress file of a worker, or takes over the one of the worker before it.

        Without room for it the worker goes without: its path is "" then, which is said once.
        """
        path = os.path.join(self._private.path, f"progress-{local_rank}")
        try:
            found = path, ProgressFile(path, create=True)
        except OSError as error:
            if not self._without_progress:
                why = error.strerror or str(error)
                self._put(ProgressOff(path, why))
            self._without_progress.add(local_rank)
            return "", ProgressFile("")
        self._without_progress.discard(local_rank)
        return found

    def stop(
        self, grace: float, local_ranks: Collection[int] = (), signum: int = signal.SIGTERM
    ) -> None:
        """A signal to workers, SIGKILL after ``grace`` seconds.

        Those that do not handle it get SIGTERM. Those that catch a SIGTERM of somebody else's get
        SIGKILL at once instead, which ends them as SIGTERM ends others that do not handle it.

        Args:
            grace: see above.
            local_ranks: which ones; none: all.
            signum: the signal.
        """
        chosen = frozenset(local_ranks or self._posts)
        shielded = frozenset(r for r in chosen if r in self._posts and self._posts[r].shielded)
        if signum == signal.SIGTERM:
            self._workers.stop(0.0, shielded)
        else:
            self._workers.stop(grace, shielded, signum, otherwise=signal.SIGKILL)
        self._workers.stop(grace, chosen - shielded, signum)

    def pass_on(self, signum: int) -> None:
        """Hands a signal on to the workers that handle it."""
        for local_rank in self._posts:
            self._workers.signal(local_rank, signum, otherwise=0)

    def kill(self, local_ranks: Iterable[int], why: str) -> None:
        """Has workers dump the stacks of all their threads into their logs, and ends them.

        Args:
            local_ranks: which ones.
            why: what their end is put down to, as a predicate.
        """
        for local_rank in local_ranks:
            if local_rank in self._posts:
                self._posts[local_rank].ended_for = why
            self._workers.abort(local_rank, _DUMP_SECONDS)

    def running(self) -> frozenset[int]:
        """Local ranks of the workers that have not ended."""
        return self._workers.running()

    def exited(self, item: worker_processes.WorkerExited, told_to_stop: bool) -> WorkerExited:
        """What a worker's end means.

        Args:
            item: the end.
            told_to_stop: workers were told to end, so that a signal is no failure.
        """
        local_rank = item.local_rank
        post = self._posts[local_rank]
        self._logs.ended(post.place)
        if item.code == 0:
            item = replace(item, code=self._take_value(local_rank, post.place.error_file))
        if item.code == 0:
            return WorkerExited(item.round, local_rank, 0)
        if item.code == EXIT_DRAINED:
            return WorkerExited(item.round, local_rank, item.code, drained=True)
        path = post.place.error_file
        error = read_error_file(path)
        step = post.progress.read()[0]
        fault = classify(
            item.round,
            post.rank,
            item.code,
            error,
            step=step,
            lifetime=item.lifetime,
            ended_for=post.ended_for,
        )
        if item.with_server:
            reason = f"worker {post.rank} ended with its fork server"
            fault = replace(fault, kind=KILLED, reason=reason, signature=WITH_SERVER)
        if item.refused:
            reason = f"worker {post.rank} cannot be started: {item.refused}"
            fault = replace(fault, kind=START, reason=reason, signature=NO_ROOM)
        if not (told_to_stop and item.code < 0):
            self.failures[post.rank] = failure(local_rank, item.pid, item.code, path, error)
            self._failed[post.rank] = post.place
        return WorkerExited(item.round, local_rank, item.code, fault=fault)

    def _take_value(self, local_rank: int, error_file: str) -> int:
        """Fetches what a function has returned; the worker's exit code, 1 if that cannot be read.

        What is read is the user's: making it again may fail in any way.
        """
        try:
            self._values[local_rank] = self._workers.return_value(local_rank)
        except Exception as error:
            text = (
                f"its function has ended well, but what it returned cannot be read here: {error!r}"
            )
            write_error_file(error_file, ValueError(text).with_traceback(error.__traceback__))
            return 1
        return 0

    def values(self, local_rank: int) -> Any:
        """What the worker's function has returned."""
        return self._values.get(local_rank)

    def rank_of(self, local_rank: int) -> int:
        """A worker's global rank."""
        return self._posts[local_rank].rank

    # ------------------------------------------------------------ what they say

    def heard(self, item: FromWorker) -> Event | Note | None:
        """What a message means; None if nothing, or if its sender was replaced."""
        local_rank = next((r for r, p in self._posts.items() if p.life == item.life), None)
        if local_rank is None:
            return None
        match item.message:
            case Hello(drains=can, shielded=shielded):
                self._posts[local_rank].shielded = shielded
                return WorkerDrains(self._posts[local_rank].started_for, local_rank, can)
            case Ready():
                return WorkerReady(local_rank)
            case Left(number, step, planned, reason, released):
                return WorkerLeft(local_rank, number, step, planned, reason, released)
            case Returned(number):
                return WorkerReturned(local_rank, number)
            case Heard(collective, where, busy):
                return WorkerHeard(local_rank, collective, where, busy)
            case Note() as note:
                return note
        return None

    # ------------------------------------------------------------ what they are told

    def drain(self, number: int, reason: str) -> None:
        """Asks all to save and leave at a step boundary."""
        self._tell(self._posts, Drain(number, reason))

    def enter(self, last: RoundRecord, group_rank: int, local_ranks: Sequence[int]) -> None:
        """Has workers take part in a round, in this order."""
        first = last.first_worker(group_rank)
        host = last.members[0]
        spares = _stores(last)[1:]
        for index, local_rank in enumerate(local_ranks):
            self._posts[local_rank].rank = first + index
            self._workers.relabel(local_rank, first + index)
            message = Enter(
                round=last.number,
                rank=first + index,
                world=last.world_size,
                local_rank=local_rank,
                local_world=len(local_ranks),
                group_rank=group_rank,
                group_world=last.size,
                host=host.address,
                port=last.store_port,
                key=key_of(last.incarnation, last.number),
                spares=spares,
                committed=last.budget.best_step,
            )
            self._tell([local_rank], message)
        if self._store is not None:
            over = (self._store, last.incarnation, last.number)
            with suppress(RuntimeError):  # no thread for it now: the next round has it done
                threads.spawn(forget_rounds, *over, name="round-keys")

    def nearby(self, last: RoundRecord | None) -> None:
        """Has workers connect to the stores of the round that others are in, and wait for it.

        Args:
            last: that round, if there is one.
        """
        if last is not None:
            self._tell(self._posts, Nearby(_stores(last)))

    def interrupt(self, number: int, local_ranks: Iterable[int], reason: str) -> None:
        """Has workers leave a round now."""
        self._tell(local_ranks, Interrupt(number, reason))

    def change(self, number: int, reason: str, goes: bool) -> None:
        """Has all leave a round at a step that all ranks agree on."""
        self._tell(self._posts, Change(number, reason, goes))

    def ask(self, local_ranks: Iterable[int]) -> None:
        """Asks workers where they are."""
        self._tell(local_ranks, Ask())

    def dismiss(self, saves: int | None) -> None:
        """Lets all workers end, one of them once it has saved what it remembers."""
        for local_rank in self._posts:
            self._tell([local_rank], Dismiss(saves=local_rank == saves))

    def _tell(self, local_ranks: Iterable[int], message: Message) -> None:
        self._channel.tell([self._posts[r].life for r in local_ranks if r in self._posts], message)

    # ------------------------------------------------------------ steps and stores

    def step(self) -> int:
        """The highest step that a worker has reported; -1: none."""
        return max((post.progress.read()[0] for post in self._posts.values()), default=-1)

    def progress(self) -> tuple[int, int, float]:
        """The step that a worker has reported last, which of its steps that was, and when.

        Returns:
            The step, the number, and seconds on the monotonic clock; -1, 0, 0.0: none so far.
        """
        seen = (post.progress.read() for post in self._posts.values())
        step, count, moment = max(seen, key=lambda one: one[2], default=(-1, 0, 0))
        return step, count, moment / 1e9

    def pulse(self) -> Pulse:
        """What those workers show of their progress that have not ended."""
        running = self._workers.running()
        posts = [post for rank, post in self._posts.items() if rank in running]
        read = max((p.progress.read() for p in posts), key=lambda one: one[2], default=(-1, 0, 0))
        said = [post.progress.expected for post in posts]
        expected = max(said, default=0)
        since = expected / 1e9 if expected > ProgressFile.BUSY else None
        busy = ProgressFile.BUSY in said
        return Pulse(read[1], read[2] / 1e9, since, in_train=expected > 0, busy=busy)

    def reserve(self) -> int:
        """A port on which this node would host the next round's store; 0: none."""
        return self._store.port if self._store is not None else self._ports.reserve()

    def host(self, port: int) -> None:
        """Hosts the store of a job in place, for as long as this agent lives.

        Args:
            port: the one that was announced for a round; 0: a free one.

        Raises:
            OSError: the port is taken.
        """
        if self._store is None:
            self._ports.release()
            # torch would listen at all addresses.
            listener = self._where.listen(port)
            self._store = TCPStore(
                way_to(listener),
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def close(self) -> None:
        """Ends all workers, and everything else.

        The report names error files in the log directory then, as far as they are there; all that
        it names else are in the private one.
        """
        self._workers.close()
        for rank, found in self.failures.items():
            if found.error_file and self._failed[rank].published:
                found.error_file = self._failed[rank].published

    @property
    def keeps_errors(self) -> bool:
        """The report names error files in the private directory."""
        named = {found.error_file for found in self.failures.values()}
        paths = [place.error_file for place in self._failed.values() if place.error_file in named]
        return any(os.path.isfile(path) for path in paths)

    def hang_up(self) -> None:
        """Closes what other nodes may still need while the workers end."""
        self._channel.close()
        self._ports.release()
        self._store = None
        for post in self._posts.values():
            post.progress.close()


def _stores(last: RoundRecord) -> list[list[Any]]:
    """Where the store of a round that follows this one is likely to be: with the first members."""
    return [[m.address, m.store_port] for m in last.members[:_SPARES] if m.store_port]
