"""The agent: performs what ``lifecycle`` decides.

It extends torch's ``SimpleElasticAgent`` and keeps its types, events and error files; the loop is
its own. One queue carries everything that can happen (worker exits, notices of the rendezvous,
messages of workers, signals), and one thread, the main one, takes from it. It never polls.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elastic_runtime.agent import lifecycle, workers
from elastic_runtime.agent.channel import Channel
from elastic_runtime.agent.environment import PortKeeper, worker_environment
from elastic_runtime.agent.faults import classify, parse_error_file
from elastic_runtime.agent.life import (
    Alarm,
    AskDrain,
    Asked,
    Finish,
    Report,
    SayDone,
    SayDrain,
    SayGoodbye,
    SayJoin,
    SayLeft,
    ServerDied,
    ServerReady,
    SetAlarm,
    Settings,
    StartServer,
    StartWorkers,
    StopWorkers,
    WorkerDrains,
    WorkerExited,
)
from elastic_runtime.agent.logdir import LogDirs
from elastic_runtime.agent.private import PrivateDirectory
from elastic_runtime.agent.watchdogs import Watchdogs
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT
from elastic_runtime.log import remembered
from elastic_runtime.protocol.messages import (
    EXIT_DRAINED,
    Drain,
    Drained,
    Hello,
    Message,
    Note,
    ProgressFile,
)
from elastic_runtime.protocol.records import EVENT_SLOTS, EventRecord
from elastic_runtime.rendezvous.participant import Participant, Seed
from elastic_runtime.rendezvous.probe import ProbeServer
from elastic_runtime.rendezvous.state import Policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.distributed.elastic.agent.server.api import WorkerSpec as TorchSpec

    from elastic_runtime.agent.forkclient import Ahead
    from elastic_runtime.agent.life import Action, Event, Step
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events import Emit
    from elastic_runtime.protocol.records import FaultReport, RoundRecord
    from elastic_runtime.rendezvous.store import Store

# The agent says that it lives this often even if nothing happens (seconds); a third of the
# shortest lease that a store grants.
_BEAT = 0.6
_FAREWELL = 2.0
# The host of the store leaves last; the others need a moment to read the outcome and to go.
_OUTLAST = 10.0


@dataclass(frozen=True, slots=True)
class _FromWorker:
    """A message of a worker, on its way to the main loop."""

    round: int
    rank: int
    message: Message


class ElasticAgent(SimpleElasticAgent):  # type: ignore[misc]
    """One node's agent.

    Args:
        config: the settings.
        spec: torch's description of the workers; its handler only names the run.
        store: the rendezvous store, not yet started.
        address: where other nodes reach this one.
        emit: where events go.
        ahead: the first fork server, if it has been started already.
    """

    def __init__(
        self,
        config: JobConfig,
        spec: TorchSpec,
        store: Store,
        address: str,
        emit: Emit,
        ahead: Ahead | None = None,
    ) -> None:
        super().__init__(spec)
        times = config.timeouts
        self._config = config
        self._emit = emit
        self._inbox: queue.SimpleQueue[Event | _FromWorker | workers.WorkerEvent] = (
            queue.SimpleQueue()
        )
        self._life = lifecycle.begin(
            Settings(
                config.workers,
                times.grace,
                times.broken_grace,
                times.connect,
                times.join,
                config.max_restarts,
            )
        )
        self._finish: Finish | None = None
        self._alarm = float("inf")
        self._directory = PrivateDirectory()
        self._private = self._directory.path
        self._ports = PortKeeper()
        self._logs = LogDirs(config, self._private)
        self._workers = workers.Workers(config, self._inbox.put, ahead=ahead)
        self._channel = Channel(os.path.join(self._private, "agent.sock"), self._from_worker)
        self._probes = ProbeServer("", self._introduce)
        seed = Seed(config.node_name, address, config.workers, self._probes.port, config.settings)
        self._participant = Participant(store, _policy(config), seed, self._inbox.put, times.probe)
        self._turned = time.time()
        self._watchdogs = Watchdogs(
            config.run_id, self._private, config.health_port, lambda: self._turned
        )
        self._progress: dict[int, ProgressFile] = {}
        self._files: dict[int, str] = {}
        self._failures: dict[int, ProcessFailure] = {}
        self._values: dict[int, Any] = {}
        self._started_at = time.monotonic()
        self._trouble_at: float | None = None
        self._events = 0
        self._closed = False

    # ------------------------------------------------------------ the loop

    def _invoke_run(self, role: str = "default") -> RunResult:
        self._watchdogs.start()
        self._perform(self._life.actions)
        while self._finish is None:
            self._participant.beat()
            self._turned = time.time()
            timeout = max(0.0, min(self._alarm - time.monotonic(), _BEAT))
            try:
                item = self._inbox.get(timeout=timeout)
            except queue.Empty:
                if time.monotonic() < self._alarm:
                    continue
                self._alarm = float("inf")
                item = Alarm()
            event = self._translate(item)
            if event is not None:
                self._take(event)
        return self._result()

    def _take(self, event: Event) -> None:
        step: Step = lifecycle.step(self._life.state, event, time.monotonic())
        self._life = step
        self._perform(step.actions)

    def ask_to_leave(self, signum: int) -> None:
        """Asks the agent to leave; a second time: at once. Safe in a signal handler."""
        self._inbox.put(Asked(signum))

    @property
    def finish(self) -> Finish | None:
        """How the agent's life ended."""
        return self._finish

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """The workers of the last round that failed here, by global rank."""
        return self._failures

    def _result(self) -> RunResult:
        finish = self._finish
        assert finish is not None
        if finish.outcome is not None and finish.outcome.succeeded:
            values = {w.global_rank: self._values.get(w.local_rank) for w in self._group.workers}
            return RunResult(WorkerState.SUCCEEDED, return_values=values)
        return RunResult(WorkerState.FAILED, failures=self._failures)

    @property
    def _group(self) -> WorkerGroup:
        return self._worker_group

    # ------------------------------------------------------------ what comes in

    def _from_worker(self, round_number: int, rank: int, message: Message) -> None:
        self._inbox.put(_FromWorker(round_number, rank, message))

    def _introduce(self) -> dict[str, Any]:
        last = self._life.state.round
        return {
            "node": self._participant.node,
            "name": self._config.node_name,
            "phase": self._life.state.phase.value,
            "round": last.number if last else 0,
            "step": self._step(),
        }

    def _translate(self, item: Any) -> Event | None:
        match item:
            case _FromWorker():
                return self._heard(item)
            case workers.ServerReady(cold=cold):
                return ServerReady(cold)
            case workers.ServerDied(why=why):
                return ServerDied(why)
            case workers.WorkerStarted():
                return None
            case workers.WorkerExited():
                return self._exited(item)
            case _:
                event: Event = item
                return event

    def _heard(self, item: _FromWorker) -> Event | None:
        last = self._life.state.round
        if last is None or item.round != last.number:
            return None
        first = self._first_rank
        match item.message:
            case Hello(drains=can):
                return WorkerDrains(item.round, item.rank - first, can)
            case Drained():
                return None  # its exit code says it as well
            case Note(name=name, fields=fields):
                if name == "step.first":
                    self._recovered(int(fields.get("step", -1)))
                else:
                    self._tell(name, {**fields, "rank": item.rank, "round": item.round})
        return None

    @property
    def _first_rank(self) -> int:
        last = self._life.state.round
        if last is None:
            return 0
        return last.first_worker(max(0, last.rank_of(self._participant.node)))

    def _exited(self, item: workers.WorkerExited) -> Event:
        local_rank = item.local_rank
        rank = self._first_rank + local_rank
        if item.code == 0:
            self._values[local_rank] = self._workers.return_value(local_rank)
            return WorkerExited(item.round, local_rank, 0)
        if item.code == EXIT_DRAINED:
            return WorkerExited(item.round, local_rank, item.code, drained=True)
        error_file = self._files.get(local_rank, "")
        error = None
        if os.path.isfile(error_file):
            with open(error_file, "rb") as file:
                error = parse_error_file(file.read())
        step = self._step_of(local_rank)
        fault = classify(item.round, rank, item.code, error, step=step, lifetime=item.lifetime)
        if not (self._life.state.told_to_stop and item.code < 0):
            self._failures[rank] = ProcessFailure(
                local_rank=local_rank, pid=item.pid, exitcode=item.code, error_file=error_file
            )
        if self._trouble_at is None:
            self._trouble_at = time.monotonic()
        return WorkerExited(item.round, local_rank, item.code, fault=fault)

    def _step_of(self, local_rank: int) -> int:
        progress = self._progress.get(local_rank)
        return progress.read()[0] if progress else -1

    def _step(self) -> int:
        return max((self._step_of(local_rank) for local_rank in self._progress), default=-1)

    def _tell(self, name: str, fields: Mapping[str, Any]) -> None:
        """Lets an event leave; the important ones are kept in the store as well."""
        self._emit(name, **fields)
        text = remembered(name, fields)
        last = self._life.state.round
        whole_job = name in ("round.sealed", "round.recovered")
        if not text or (whole_job and last and last.rank_of(self._participant.node) != 0):
            return
        self._events += 1
        slot = f"{self._config.node_name}-{self._events % EVENT_SLOTS}"
        record = EventRecord(
            time.time(), name, last.number if last else 0, self._config.node_name, text
        )
        self._participant.record_event(slot, record)

    def _recovered(self, step: int) -> None:
        last = self._life.state.round
        if self._trouble_at is None or last is None:
            return
        seconds = time.monotonic() - self._trouble_at
        self._trouble_at = None
        fields = {"round": last.number, "seconds": round(seconds, 3), "step": step}
        self._tell("round.recovered", fields)

    # ------------------------------------------------------------ what goes out

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case StartServer():
                    self._workers.start_server()
                case SayJoin():
                    self._participant.join(self._ports.reserve())
                case StartWorkers(last, group_rank):
                    self._start_round(last, group_rank)
                case StopWorkers(grace):
                    if self._trouble_at is None:
                        self._trouble_at = time.monotonic()
                    self._workers.stop(grace)
                case AskDrain(number, reason):
                    if self._trouble_at is None:
                        self._trouble_at = time.monotonic()
                    self._channel.tell(number, Drain(number, reason))
                case SayLeft(number, fault, stays):
                    fault = self._with_progress(fault)
                    self._participant.leave(number, fault, self._ports.reserve(), stays)
                case SayDone(number):
                    self._participant.done(number, self._step())
                case SayDrain():
                    self._participant.drain()
                case SayGoodbye():
                    self._participant.goodbye(_FAREWELL)
                case SetAlarm(at):
                    self._alarm = at
                case Report(name, fields):
                    self._tell(name, fields)
                case Finish(code, message):
                    saved = code == EXIT_LEFT and self._life.state.drained
                    told = f"{message}; step {self._step()} is saved" if saved else message
                    self._finish = replace(action, message=told)

    def _with_progress(self, fault: FaultReport) -> FaultReport:
        """The report with what this node's workers had reached, whyever they ended."""
        lived = time.monotonic() - self._started_at
        return replace(
            fault, step=max(fault.step, self._step()), lifetime=max(fault.lifetime, lived)
        )

    def _start_round(self, last: RoundRecord, group_rank: int) -> None:
        group = self._group
        first = last.first_worker(group_rank)
        world = last.world_size
        group.group_rank = group_rank
        group.group_world_size = len(last.members)
        group.master_addr, group.master_port = last.members[0].address, last.store_port
        group.workers = [
            Worker(local, first + local, first + local, world, world)
            for local in range(self._config.workers)
        ]
        self._failures, self._values = {}, {}
        self._started_at = time.monotonic()
        ids = self._start_workers(group)
        for worker in group.workers:
            worker.id = ids[worker.local_rank]
        group.state = WorkerState.HEALTHY

    # ------------------------------------------------------------ torch's four abstract methods

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        last = self._life.state.round
        assert last is not None
        if worker_group.group_rank == 0:
            self._ports.release()
        for progress in self._progress.values():
            progress.close()
        self._progress, self._files = {}, {}
        specs = []
        for worker in worker_group.workers:
            local_rank = worker.local_rank
            place = self._logs.place(last.number, worker.global_rank)
            path = os.path.join(self._private, f"progress-{last.number}-{local_rank}")
            self._progress[local_rank] = ProgressFile(path, create=True)
            self._files[local_rank] = place.error_file
            environment = worker_environment(
                self._config,
                last,
                worker_group.group_rank,
                local_rank,
                error_file=place.error_file,
                progress_file=path,
                channel=self._channel.path,
            )
            environment.update(self._watchdogs.environment())
            specs.append(
                workers.WorkerSpec(
                    local_rank=local_rank,
                    global_rank=worker.global_rank,
                    round=last.number,
                    env=environment,
                    place=place,
                )
            )
        self._workers.start(specs)
        return {spec.local_rank: spec.global_rank for spec in specs}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._workers.stop(self._config.timeouts.grace)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        alive = self._workers.running()
        return RunResult(WorkerState.HEALTHY if alive else WorkerState.STOPPED)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._closed:
            return
        self._closed = True
        self._watchdogs.stop()
        self._workers.close()
        ended = self._finish is not None and self._finish.outcome is not None
        if ended and (
            self._config.endpoint.hosted_here or getattr(self._rendezvous, "hosting", False)
        ):
            self._participant.outlast(_OUTLAST)
        self._participant.close()
        self._probes.close()
        self._channel.close()
        self._ports.release()
        for progress in self._progress.values():
            progress.close()
        named = any(os.path.isfile(failure.error_file) for failure in self._failures.values())
        failed = self._finish is not None and self._finish.exit_code == EXIT_FAILED
        # The report names the error files; what it names must be there.
        self._directory.remove(keep="logs" if failed and named else "")


def _policy(config: JobConfig) -> Policy:
    times = config.timeouts
    return Policy(
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        node_unit=config.node_unit,
        entry=config.entry.name,
        max_restarts=config.max_restarts,
        last_call=times.last_call,
        join=times.join,
        rejoin=times.rejoin,
        fence=times.fence,
        batch=times.batch,
        settle=max(3.0, times.lease_ttl),
    )
