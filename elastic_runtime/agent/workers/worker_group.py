"""All that an agent does with its workers: starts, messages, steps, stack dumps, their end.

``WorkerProcesses`` starts and ends processes, ``Channel`` carries lines; here the two meet, and a
process becomes "the worker with this local rank". What a process says after it was replaced is
dropped.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from torch.distributed import TCPStore

from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER, classify
from elastic_runtime.agent.lifecycle.hang_detection import StepProgress
from elastic_runtime.agent.lifecycle.lifecycle_types import WorkerMessage, WorkerSaid
from elastic_runtime.agent.logs.error_files import failure, read_error_file
from elastic_runtime.agent.logs.log_directory import LogDirs
from elastic_runtime.agent.workers.roster import WorkerSpec
from elastic_runtime.agent.workers.round_keys import forget_rounds, key_of
from elastic_runtime.agent.workers.worker_channel import Channel
from elastic_runtime.agent.workers.worker_environment import PortKeeper, worker_environment
from elastic_runtime.agent.workers.worker_processes import WorkerProcesses
from elastic_runtime.events.node_events import PrivateLost, ProgressOff
from elastic_runtime.limits import STACK_DUMP_TIME
from elastic_runtime.protocol.messages import (
    ENV_DEATH,
    EXIT_WORKER_LEFT,
    Enter,
    Hello,
    Message,
    Nearby,
    Note,
    ProgressFile,
)
from elastic_runtime.protocol.records import KILLED, LACKS_RESOURCES, START
from elastic_runtime.system import thread_death, threads
from elastic_runtime.system.listening import Where, way_to
from elastic_runtime.worker.worker_main import write_error_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from elastic_runtime.agent.lifecycle.lifecycle_types import WorkerExited
    from elastic_runtime.agent.logs.log_directory import WorkerDir
    from elastic_runtime.agent.runtime_dir import RuntimeDir
    from elastic_runtime.agent.workers.fork_client import EarlyForkServer
    from elastic_runtime.config import JobConfig
    from elastic_runtime.protocol.round_records import RoundRecord

# The stores of so many members are worth a connection ahead of a fault.
_SPARES = 3


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message of a worker, on its way to the main loop.

    Attributes:
        serial: which of the workers that this agent has ever started has sent it.
        message: what it says.
    """

    serial: int
    message: Message


@dataclass
class _WorkerSlot:
    """One local rank, and the process that holds it at present."""

    serial: int
    rank: int  # global
    started_for: int  # round
    progress: ProgressFile
    worker_dir: WorkerDir
    killed_for: str = ""  # why we have ended it
    shielded: bool = False  # a SIGTERM of somebody else's does not end it
    death_file: str = ""
    watched: bool = False  # its death is noticed when it begins


class WorkerGroup:
    """The workers of one node.

    Args:
        config: the settings.
        runtime_dir: the agent's own directory.
        extra: what workers need in their environment beyond the usual.
        put: takes what workers and their server have to say, from other threads.
        where: to listen with the store of a job in place.
        early: the first fork server, if it has been started already.
        snapshots: this node's memory for snapshots, as workers find it in their environment.
    """

    def __init__(
        self,
        config: JobConfig,
        runtime_dir: RuntimeDir,
        extra: Callable[[], Mapping[str, str]],
        put: Callable[[Any], None],
        where: Where,
        early: EarlyForkServer | None = None,
        snapshots: str = "",
    ) -> None:
        self._snapshots = snapshots
        self._where = where
        self._config = config
        self._runtime_dir = runtime_dir
        self._extra = extra
        self._logs = LogDirs(config, runtime_dir.path)
        self._processes = WorkerProcesses(config, put, early=early)
        self._channel = Channel(
            os.path.join(runtime_dir.path, "agent.sock"),
            lambda serial, said: put(ChannelMessage(serial, said)),
        )
        self._ports = PortKeeper()
        self._store: TCPStore | None = None
        self._put = put
        self._slots: dict[int, _WorkerSlot] = {}  # by local rank
        self._without_progress: set[int] = set()  # local ranks
        self._started = 0
        self._values: dict[int, Any] = {}
        self.failures: dict[int, ProcessFailure] = {}
        self._failed: dict[int, WorkerDir] = {}

    # ------------------------------------------------------------ processes

    def start_server(self) -> None:
        """Starts the fork server."""
        self._processes.start_server()

    def start(self, last: RoundRecord, group_rank: int) -> None:
        """Starts all workers for one round that they do not outlive."""
        self.failures, self._failed, self._values = {}, {}, {}
        if group_rank == 0:
            self._ports.release()
        for slot in self._slots.values():
            slot.progress.close()
        self._slots = {}
        self.start_some(last, group_rank, range(self._config.workers))

    def start_some(self, last: RoundRecord, group_rank: int, local_ranks: Iterable[int]) -> None:
        """Starts workers; in place their ranks are provisional until they enter a round.

        Args:
            last: the round that their environment shows.
            group_rank: this node's rank in it.
            local_ranks: which ones.
        """
        self._restore()
        self._processes.start([self._spec(last, group_rank, rank) for rank in local_ranks])

    def _spec(self, last: RoundRecord, group_rank: int, local_rank: int) -> WorkerSpec:
        """Gives a new worker its slot, and says how it is to be started."""
        self._started += 1
        rank = last.first_worker(group_rank) + local_rank
        worker_dir = self._logs.worker_dir(last.number, rank)
        if (old := self._slots.get(local_rank)) is not None:
            old.progress.close()
        path, progress = self._progress_file(local_rank)
        death_file = self._death_file()
        self._slots[local_rank] = _WorkerSlot(
            self._started, rank, last.number, progress, worker_dir, death_file=death_file
        )
        environment = worker_environment(
            self._config,
            last,
            group_rank,
            local_rank,
            error_file=worker_dir.error_file,
            progress_file=path,
            channel=self._channel.path,
            serial=self._started,
            snapshots=self._snapshots,
        )
        environment.update(self._extra(), **{ENV_DEATH: death_file})
        return WorkerSpec(
            local_rank=local_rank,
            global_rank=rank,
            round=last.number,
            env=environment,
            worker_dir=worker_dir,
        )

    def _restore(self) -> None:
        """Makes again what somebody has removed of the runtime directory, for those who start."""
        try:
            self._runtime_dir.renew()
            self._channel.renew()
        except OSError as error:
            why = error.strerror or str(error)
            self._put(PrivateLost(self._runtime_dir.path, why))

    def _progress_file(self, local_rank: int) -> tuple[str, ProgressFile]:
        """Makes the progress file of a worker, or takes over the one of the worker before it.

        If there is no space for it the worker does without: its path is "" then, which is reported
        once.
        """
        path = os.path.join(self._runtime_dir.path, f"progress-{local_rank}")
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

    def _death_file(self) -> str:
        """Makes the file through which a worker's death is noticed early; "": it cannot be."""
        path = os.path.join(self._runtime_dir.path, f"death-{self._started}")
        try:
            thread_death.make(path)
        except OSError:
            return ""
        return path

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
        chosen = frozenset(local_ranks or self._slots)
        shielded = frozenset(r for r in chosen if r in self._slots and self._slots[r].shielded)
        if signum == signal.SIGTERM:
            self._processes.stop(0.0, shielded)
        else:
            self._processes.stop(grace, shielded, signum, otherwise=signal.SIGKILL)
        self._processes.stop(grace, chosen - shielded, signum)

    def forward_signal(self, signum: int) -> None:
        """Hands a signal on to the workers that handle it."""
        for local_rank in self._slots:
            self._processes.signal(local_rank, signum, otherwise=0)

    def kill(self, local_ranks: Iterable[int], why: str) -> None:
        """Has workers dump the stacks of all their threads into their logs, and ends them.

        Args:
            local_ranks: which ones.
            why: the cause of their end, as a predicate.
        """
        for local_rank in local_ranks:
            if local_rank in self._slots:
                self._slots[local_rank].killed_for = why
            self._processes.abort(local_rank, STACK_DUMP_TIME)

    def running(self) -> frozenset[int]:
        """Local ranks of the workers that have not ended."""
        return self._processes.running()

    def explained(self, exited: WorkerExited, stop_ordered: bool) -> WorkerExited:
        """A worker's end with what it means, as far as its files and its return value tell.

        Args:
            exited: the end of its process.
            stop_ordered: workers were ordered to end, so that a signal is no failure.
        """
        local_rank = exited.local_rank
        slot = self._slots[local_rank]
        self._logs.ended(slot.worker_dir)
        with suppress(OSError):
            os.unlink(slot.death_file)
        path = slot.worker_dir.error_file
        if exited.code == 0:
            exited = replace(exited, code=self._take_value(local_rank, path))
        if exited.code == 0:
            return exited
        if exited.code == EXIT_WORKER_LEFT:
            return replace(exited, left_at_step=True)
        error = read_error_file(path)
        fault = classify(
            exited.round,
            slot.rank,
            exited.code,
            error,
            step=slot.progress.read()[0],
            lifetime=exited.lifetime,
            killed_for=slot.killed_for,
        )
        if exited.with_server:
            reason = f"worker {slot.rank} ended with its fork server"
            fault = replace(fault, kind=KILLED, reason=reason, signature=WITH_SERVER)
        if exited.refused:
            reason = f"worker {slot.rank} cannot be started: {exited.refused}"
            fault = replace(fault, kind=START, reason=reason, signature=LACKS_RESOURCES)
        if not (stop_ordered and exited.code < 0):
            self.failures[slot.rank] = failure(local_rank, exited.pid, exited.code, path, error)
            self._failed[slot.rank] = slot.worker_dir
        return replace(exited, fault=fault)

    def _take_value(self, local_rank: int, error_file: str) -> int:
        """Fetches what a function has returned; the worker's exit code, 1 if that cannot be read.

        What is read is the user's: making it again may fail in any way.
        """
        try:
            self._values[local_rank] = self._processes.return_value(local_rank)
        except Exception as error:
            text = (
                f"its function has ended well, but what it returned cannot be read here: {error!r}"
            )
            write_error_file(error_file, ValueError(text).with_traceback(error.__traceback__))
            return 1
        return 0

    def value(self, local_rank: int) -> Any:
        """What the worker's function has returned."""
        return self._values.get(local_rank)

    def rank_of(self, local_rank: int) -> int:
        """A worker's global rank."""
        return self._slots[local_rank].rank

    # ------------------------------------------------------------ messages from them

    def heard(self, item: ChannelMessage) -> WorkerSaid | Note | None:
        """Whose message it is; None if nothing follows from it, or if its sender was replaced."""
        local_rank = next((r for r, s in self._slots.items() if s.serial == item.serial), None)
        if local_rank is None:
            return None
        message = item.message
        if isinstance(message, Hello):
            slot = self._slots[local_rank]
            slot.shielded = message.shielded
            if message.watched and not slot.watched:
                slot.watched = True
                self._processes.watch(local_rank, message.pid, slot.death_file)
            message = replace(message, round=slot.started_for)
        if isinstance(message, Note):
            return message
        if isinstance(message, get_args(WorkerMessage)):
            return WorkerSaid(local_rank, message)
        return None

    # ------------------------------------------------------------ messages to them

    def tell(self, message: Message, local_ranks: Iterable[int] = ()) -> None:
        """Sends a message to workers, to all if none are named."""
        chosen = [self._slots[r].serial for r in local_ranks or self._slots if r in self._slots]
        self._channel.tell(chosen, message)

    def enter(self, last: RoundRecord, group_rank: int, local_ranks: Sequence[int]) -> None:
        """Has workers take part in a round, in this order."""
        for index, local_rank in enumerate(local_ranks):
            rank = last.first_worker(group_rank) + index
            self._slots[local_rank].rank = rank
            self._processes.relabel(local_rank, rank)
            message = _enter_message(last, group_rank, rank, local_rank, len(local_ranks))
            self.tell(message, (local_rank,))
        if self._store is not None:
            over = (self._store, last.incarnation, last.number)
            with suppress(RuntimeError):  # no thread for it now: the next round has it done
                threads.spawn(forget_rounds, *over, name="round-keys")

    def connect_ahead(self, last: RoundRecord | None) -> None:
        """Has workers connect to the stores of the round that others are in, and wait for it.

        Args:
            last: that round, if there is one.
        """
        if last is not None:
            self.tell(Nearby(_stores(last)))

    # ------------------------------------------------------------ steps and stores

    def step(self) -> int:
        """The highest step that a worker has reported; -1: none."""
        return max((slot.progress.read()[0] for slot in self._slots.values()), default=-1)

    def inner(self) -> int:
        """The most inner steps that a worker has made alone since the highest step."""
        kept = [slot.progress.kept for slot in self._slots.values()]
        highest = max(self.step(), 0)  # before the first one they are counted from 0
        return max((inner for step, inner in kept if step == highest), default=0)

    def progress(self) -> tuple[int, int, float]:
        """The step that a worker has reported last, which of its steps that was, and when.

        Returns:
            The step, the number, and when it or an inner step was last (seconds); -1, 0, 0.0: none.
        """
        slots = [slot.progress for slot in self._slots.values()]
        seen = [one.read() for one in slots]
        step, count, _ = max(seen, key=lambda one: one[2], default=(-1, 0, 0))
        return step, count, max((one.moves()[1] for one in slots), default=0) / 1e9

    def step_progress(self) -> StepProgress:
        """What those workers show of their progress that have not ended."""
        running = self._processes.running()
        slots = [slot for rank, slot in self._slots.items() if rank in running]
        count, moment = max((s.progress.moves() for s in slots), key=lambda m: m[1], default=(0, 0))
        said = [slot.progress.expected for slot in slots]
        expected = max(said, default=0)
        since = expected / 1e9 if expected > ProgressFile.BUSY else None
        busy = ProgressFile.BUSY in said
        return StepProgress(count, moment / 1e9, since, in_train=expected > 0, busy=busy)

    def reserve_port(self) -> int:
        """A port on which this node would host the next round's store; 0: none."""
        return self._store.port if self._store is not None else self._ports.reserve()

    def host_store(self, port: int = 0) -> None:
        """Hosts the store of a job in place, for as long as this agent runs.

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
        it names else are in the runtime directory.
        """
        self._processes.close()
        for rank, found in self.failures.items():
            if found.error_file and self._failed[rank].published:
                found.error_file = self._failed[rank].published

    @property
    def keeps_errors(self) -> bool:
        """The report names error files in the runtime directory."""
        named = {found.error_file for found in self.failures.values()}
        paths = [found.error_file for found in self._failed.values() if found.error_file in named]
        return any(os.path.isfile(path) for path in paths)

    def hang_up(self) -> None:
        """Closes what other nodes may still need while the workers end."""
        self._channel.close()
        self._ports.release()
        self._store = None
        for slot in self._slots.values():
            slot.progress.close()


def _enter_message(
    last: RoundRecord, group_rank: int, rank: int, local_rank: int, local_world: int
) -> Enter:
    """What a worker has to know of the round that it enters.

    Args:
        last: the round.
        group_rank: its node's rank there.
        rank, local_rank: its own.
        local_world: how many workers of its node are in it.
    """
    host = last.members[0]
    return Enter(
        round=last.number,
        rank=rank,
        world=last.world_size,
        local_rank=local_rank,
        local_world=local_world,
        group_rank=group_rank,
        group_world=last.size,
        host=host.address,
        port=last.store_port,
        key=key_of(last.incarnation, last.number),
        spares=_stores(last)[1:],
        committed=last.budget.best_step,
    )


def _stores(last: RoundRecord) -> list[list[Any]]:
    """Where the store of a round that follows this one is likely to be: with the first members."""
    return [[m.address, m.store_port] for m in last.members[:_SPARES] if m.store_port]
