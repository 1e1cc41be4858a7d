"""The agent: performs what ``lifecycle`` decides.

It extends torch's ``SimpleElasticAgent`` and keeps its types, events and error files; the loop is
its own. One queue carries everything that can happen (worker exits, notices of the rendezvous,
messages of workers, signals), and one thread, the main one, takes from it. It never polls.
"""

from __future__ import annotations

import queue
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerState,
)

from elastic_runtime import events
from elastic_runtime.agent.crash import ended_by, fault_of
from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.hang_detection import HangClock
from elastic_runtime.agent.lifecycle.job_hints import Facts, hints
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    AskDrain,
    Asked,
    AskWorkers,
    BootWorkers,
    ChangeWorkers,
    DismissWorkers,
    EnterWorkers,
    Finish,
    InterruptWorkers,
    KillWorkers,
    LifecycleSettings,
    LookForMembers,
    NoNews,
    NoProgress,
    PassOn,
    Phase,
    Report,
    SayAvailable,
    SayDone,
    SayDrain,
    SayGoodbye,
    SayInPlace,
    SayJoin,
    SayLeft,
    ServerDied,
    ServerReady,
    SetAlarm,
    StartServer,
    StartWorkers,
    StopWorkers,
    WorkerLeft,
)
from elastic_runtime.agent.lifecycle.recovery_timing import Trouble, Troubles
from elastic_runtime.agent.lifecycle.termination import last_words, reached_before
from elastic_runtime.agent.metrics.metrics_fold import LoopTurned, Progress, TroubleBegan, Watch
from elastic_runtime.agent.runtime_dir import PrivateDirectory
from elastic_runtime.agent.snapshot_server import SnapshotStore
from elastic_runtime.agent.start_notice import Starting
from elastic_runtime.agent.workers import worker_processes
from elastic_runtime.agent.workers.torch_watchdogs import Watchdogs
from elastic_runtime.agent.workers.worker_environment import provisional
from elastic_runtime.agent.workers.worker_group import Crew, FromWorker
from elastic_runtime.defaults import AGENT_BEAT
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT, ElasticError
from elastic_runtime.events.checkpoint_events import CheckpointCommitted, CheckpointResumed
from elastic_runtime.events.event import NotedEvent, read
from elastic_runtime.events.job_events import Hint
from elastic_runtime.events.node_events import ListeningWide
from elastic_runtime.events.round_events import RoundRecovered, RoundSealed, StepFirst, StepNone
from elastic_runtime.events.state_events import DataShuffles, StateLacks
from elastic_runtime.events.worker_events import WorkersReplaced
from elastic_runtime.protocol.messages import Note
from elastic_runtime.protocol.records import EventRecord, Member, RoundRecord, event_key
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.probe import ProbeServer
from elastic_runtime.system import threads
from elastic_runtime.system.listening import where_reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.elastic.agent.server.api import WorkerSpec as TorchSpec
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from elastic_runtime.agent.lifecycle.lifecycle_types import Action, Event
    from elastic_runtime.agent.workers.fork_client import Ahead
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events import Emit
    from elastic_runtime.protocol.records import FaultReport
    from elastic_runtime.rendezvous.store_contract import Store

# Seconds in train without a first step that a person wants to hear of; a compiler may need as long.
_STRANGE = 60.0
_FAREWELL = 2.0
# The host of the store leaves last; the others need a moment to read the outcome and to go.
_OUTLAST = 10.0


class ElasticAgent(SimpleElasticAgent):  # type: ignore[misc]
    """One node's agent.

    Args:
        config: the settings.
        spec: torch's description of the workers; its handler only names the run.
        store: the rendezvous store, not yet started.
        address: where other nodes reach this one.
        emit: where events go.
        ahead: the first fork server, if it has been started already.
        watch: where that goes which only measurements need; None: nothing is measured.
    """

    def __init__(
        self,
        config: JobConfig,
        spec: TorchSpec,
        store: Store,
        address: str,
        emit: Emit,
        ahead: Ahead | None = None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(spec)
        self._config = config
        self._emit = emit
        self._watch = watch
        self._inbox: queue.SimpleQueue[
            Event | FromWorker | worker_processes.WorkerEvent | threads.Crash
        ] = queue.SimpleQueue()
        self._crash: threads.Crash | None = None
        self._directory = PrivateDirectory()
        self._unwatch = threads.watch(self._inbox.put)
        self._life = lifecycle_step.begin(LifecycleSettings.of(config))
        self._finish: Finish | None = None
        self._alarm = float("inf")
        where = where_reached(address)
        self._snapshots = SnapshotStore(config, address, where.address)
        try:
            self._crew = Crew(
                config,
                self._directory,
                lambda: self._watchdogs.environment(),
                self._inbox.put,
                where,
                ahead,
                self._snapshots.memory.encode() if self._snapshots.memory else "",
            )
        except BaseException:  # such as a log directory that cannot be
            self._unwatch()
            self._snapshots.close()
            self._directory.remove()
            raise
        self._probes = ProbeServer(where.address, self._introduce, lambda: self._participant.secret)
        if where.why:
            emit(ListeningWide(address, where.why))
        self._address = address
        identity = NodeIdentity(
            config.node_name,
            address,
            config.workers,
            self._probes.port,
            config.settings,
            config.node_life,
        )
        self._participant = Participant(
            store, Policy.of(config), identity, self._inbox.put, config.timeouts.probe
        )
        self._turned = time.time()
        # For threads that must not look at workers that come and go.
        self._reached = -1
        self._left_at = -1  # the step that was reached in the last round with steps that was left
        self._busy = False
        self._watchdogs = Watchdogs(
            config.run_id, self._directory.path, config.health_port, lambda: self._turned
        )
        self._begun_at = self._started_at = time.monotonic()
        self._facts = Facts(config.min_nodes, config.max_nodes, config.max_restarts)
        self._hinted: set[str] = set()
        self._troubles = Troubles()
        self._events = 0
        self._closed = False
        self._clock = HangClock(config.timeouts.hang_timeout)
        self._said_fruitless = False
        self._importing = Starting(emit, "importing what the script needs")

    # ------------------------------------------------------------ the loop

    def _invoke_run(self, role: str = "default") -> RunResult:
        try:
            self._turn()
        except ElasticError:  # it says itself whose mistake it is
            raise
        except Exception as error:
            self._crashed(threads.Crash.of("main", error))
        return self._result()

    def _turn(self) -> None:
        self._watchdogs.start()
        self._perform(self._life.actions)
        while self._finish is None:
            self._participant.beat()
            self._turned = time.time()
            self._reached = self._crew.step()
            self._observe(LoopTurned)
            self._look_for_progress()
            timeout = max(0.0, min(self._alarm - time.monotonic(), AGENT_BEAT))
            try:
                item = self._inbox.get(timeout=timeout)
            except queue.Empty:
                if time.monotonic() < self._alarm:
                    self._give_hints()
                    continue
                self._alarm = float("inf")
                item = Alarm()
            if isinstance(item, threads.Crash):
                self._crashed(item)
                return
            event = self._translate(item)
            if isinstance(event, Asked | Alarm):
                part = self._participant
                served = part.state.connected
                event = replace(event, alone=part.alone, leads=part.leads, served=served)
            if event is not None:
                self._take(event)

    def _crashed(self, crash: threads.Crash) -> None:
        """A defect of ours ends this agent, before the others have to find out."""
        self._crash = crash
        self._finish, event = ended_by(crash, self._config)
        with suppress(Exception):
            self._tell(event)

    def _take(self, event: Event) -> None:
        step = lifecycle_step.step(self._life.state, event, time.monotonic())
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
    def node(self) -> str:
        """The uuid of this node's present life."""
        return self._participant.node

    @property
    def round(self) -> RoundRecord | None:
        """The last round that this node was in."""
        return self._life.state.round

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """The workers of the last round that failed here, by global rank."""
        return self._crew.failures

    def _result(self) -> RunResult:
        finish = self._finish
        assert finish is not None
        if finish.outcome is not None and finish.outcome.succeeded:
            values = {w.global_rank: self._crew.values(w.local_rank) for w in self._group.workers}
            return RunResult(WorkerState.SUCCEEDED, return_values=values)
        return RunResult(WorkerState.FAILED, failures=self._crew.failures)

    @property
    def _group(self) -> WorkerGroup:
        return self._worker_group

    # ------------------------------------------------------------ what comes in

    def _introduce(self) -> dict[str, Any]:
        last = self._life.state.round
        return {
            "node": self._participant.node,
            "name": self._config.node_name,
            "phase": self._life.state.phase.value,
            "round": last.number if last else 0,
            "step": self._reached,
            "busy": self._busy,
        }

    def _translate(self, item: Any) -> Event | None:
        match item:
            case FromWorker():
                return self._heard(item)
            case worker_processes.ServerReady(cold=cold):
                self._importing.end()
                return ServerReady(cold)
            case worker_processes.ServerDied(why=why, refused=refused):
                return ServerDied(why, refused)
            case worker_processes.WorkerStarted():
                return None
            case events.Event():
                self._tell(item)
                return None
            case worker_processes.WorkerExited():
                return self._exited(item)
            case _:
                event: Event = item
                return event

    def _heard(self, item: FromWorker) -> Event | None:
        said = self._crew.heard(item)
        if isinstance(said, WorkerLeft) and not said.planned:
            self._note_trouble()
        if not isinstance(said, Note):
            return said
        fields = {**said.fields, "rank": said.rank, "round": said.round}
        noted = read(said.name, fields, NotedEvent)
        self._facts = self._facts.heard(noted)
        match noted:
            case StepFirst():
                self._recovered(noted)
            case DataShuffles() | StateLacks():
                self._give_hints()
            case CheckpointCommitted():
                if self._watch is not None:
                    self._watch(noted)
            case CheckpointResumed():
                self._tell(self._with_reached(noted))
            case _:
                self._tell(noted)
        return None

    def _exited(self, item: worker_processes.WorkerExited) -> Event:
        state = self._life.state
        event = self._crew.exited(item, state.told_to_stop)
        if event.fault is not None:
            self._note_trouble()
        return event

    def _tell(self, event: events.Event) -> None:
        """Lets an event leave; the important ones are kept in the store as well."""
        self._emit(event)
        text = event.kept_message()
        last = self._life.state.round
        whole_job = isinstance(event, RoundSealed | RoundRecovered)
        rank = last.rank_of(self._participant.node) if last else -1
        if not text or (whole_job and last and rank != 0):
            return
        self._events += 1
        record = EventRecord(
            time.time(), event.name, last.number if last else 0, self._config.node_name, text
        )
        self._participant.record_event(event_key(rank, self._events), record)

    def _with_reached(self, event: CheckpointResumed) -> CheckpointResumed:
        """A worker that resumes does not know how far the job was; its agent does."""
        last = self._life.state.round
        if last is None or event.reached is not None:
            return event
        return replace(event, reached=reached_before(self._left_at, last.budget))

    def _recovered(self, first: StepFirst) -> None:
        """The first step of a round is done, by the first of our workers that says so."""
        last = self._life.state.round
        if last is None or first.round != last.number:
            return
        now = time.monotonic()
        trouble, self._troubles = self._troubles.over(last.number, now)
        if trouble is None:
            return
        seconds = round(now - trouble.at, 3)
        stalled = round(now - trouble.stepped, 3) if trouble.stepped else None
        self._tell(RoundRecovered(last.number, seconds, first.step, stalled))
        if self._troubles.first is not None:
            self._observe(TroubleBegan)

    def _give_hints(self) -> None:
        """Says what is plainly wrong with the job: once, and not on each node."""
        state = self._life.state
        if state.phase is not Phase.RUNNING or state.round is None or state.group_rank != 0:
            return
        facts = replace(
            self._facts,
            machines=len({member.address for member in state.round.members}),
            seconds=time.monotonic() - self._begun_at,
            counts=self._reached >= 0,
        )
        for about, text in hints(facts).items():
            if about not in self._hinted:
                self._hinted.add(about)
                self._tell(Hint(about, text))

    def _look_for_progress(self) -> None:
        """In place: notices that a step takes longer than it should."""
        if not self._life.state.in_place:
            return
        last, now = self._life.state.round, time.monotonic()
        pulse = self._crew.pulse()
        self._busy = pulse.busy
        self._clock = self._clock.seen(pulse, last.number if last else 0, now)
        if self._clock.fruitless(now) > _STRANGE and not self._said_fruitless:
            self._said_fruitless = True
            self._tell(StepNone(round(self._clock.fruitless(now))))
        way, busy = self._clock.on_the_way(now), self._clock.busy_for(now)
        if max(way, busy) > self._config.timeouts.rejoin_timeout and self._inbox.empty():
            self._take(NoNews(way, "not in train") if way else NoNews(busy, "busy"))
        # Not before all is read that has come: an answer of a worker may be among it.
        if self._clock.overdue(now) and self._inbox.empty():
            self._take(NoProgress(self._clock.idle(now), self._clock.limit))

    # ------------------------------------------------------------ what goes out

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if not (self._command(action) or self._say(action)):
                raise AssertionError(f"nobody performs {action}")

    def _command(self, action: Action) -> bool:
        """Performs what concerns this node's workers."""
        crew = self._crew
        match action:
            case StartServer():
                self._importing.begin()
                crew.start_server()
            case StartWorkers(last, group_rank):
                self._start_round(last, group_rank)
            case BootWorkers(local_ranks):
                crew.boot(*self._provisional(), local_ranks)
            case EnterWorkers(last, group_rank, local_ranks):
                self._form_group(last, group_rank, local_ranks)
                crew.enter(last, group_rank, local_ranks)
            case StopWorkers(grace, local_ranks, signum):
                self._note_trouble()
                crew.stop(grace, local_ranks, signum)
            case PassOn(signum):
                crew.pass_on(signum)
            case AskDrain(number, reason):
                self._note_trouble(ordered=True)
                crew.drain(number, reason)
            case InterruptWorkers(number, local_ranks, reason):
                self._note_trouble(ordered=True)
                crew.interrupt(number, local_ranks, reason)
            case ChangeWorkers(number, reason, goes):
                self._note_trouble(ordered=True)
                crew.change(number, reason, goes)
            case AskWorkers(local_ranks):
                crew.ask(local_ranks)
            case KillWorkers(local_ranks, why):
                crew.kill(local_ranks, why)
            case DismissWorkers(saves):
                crew.dismiss(saves)
            case _:
                return False
        return True

    def _say(self, action: Action) -> bool:
        """Performs what concerns the rendezvous, people, and the loop itself."""
        part, crew = self._participant, self._crew
        match action:
            case SayInPlace(hosts):
                last = self._life.state.round
                crew.host(last.store_port if hosts and last else 0)
                part.in_place()
            case SayAvailable(workers_ready):
                crew.host(0)
                crew.nearby(part.state.round_record)
                part.available(workers_ready, crew.reserve())
            case SayJoin(workers_ready):
                crew.nearby(part.state.round_record)
                part.join(crew.reserve(), workers_ready)
            case SayLeft(number, fault, stays, workers_ready):
                fault = self._with_progress(fault)
                self._left_at = fault.step if fault.step >= 0 else self._left_at
                part.leave(number, fault, crew.reserve(), stays, workers_ready)
            case LookForMembers(number):
                part.look_for_members(number)
            case SayDone(number):
                part.done(number, crew.step())
            case SayDrain():
                part.drain()
            case SayGoodbye():
                part.goodbye(_FAREWELL)
            case SetAlarm(at):
                self._alarm = at
            case Report(WorkersReplaced(local_ranks=local_ranks) as said) if local_ranks:
                ranks = [crew.rank_of(rank) for rank in local_ranks]
                self._tell(replace(said, ranks=ranks))
            case Report(said):
                self._tell(said)
            case Finish(code, message):
                if code == EXIT_LEFT:
                    saved = crew.step() if self._life.state.drained else -1
                    message = last_words(message, self._config.node_name, saved, part.accompanied)
                self._finish = replace(action, message=message)
            case _:
                return False
        return True

    def _note_trouble(self, *, ordered: bool = False) -> None:
        last, before = self._life.state.round, self._troubles
        seen = Trouble(last.number if last else 0, time.monotonic(), self._crew.progress()[2])
        self._troubles = before.seen(seen, ordered=ordered)
        if before.first is None:
            self._observe(TroubleBegan)

    def _observe(self, kind: type[Progress]) -> None:
        if self._watch is not None:
            self._watch(kind(*self._crew.progress()))

    def _with_progress(self, fault: FaultReport) -> FaultReport:
        """The report with what this node's workers had reached, whyever they ended."""
        lived = time.monotonic() - self._started_at
        return replace(
            fault, step=max(fault.step, self._crew.step()), lifetime=max(fault.lifetime, lived)
        )

    def _provisional(self) -> tuple[RoundRecord, int]:
        """The round that a worker finds in its environment before it enters one."""
        part, config = self._participant, self._config
        me = Member(part.node, config.node_name, self._address, config.workers)
        return provisional(me, self._life.state.round or part.state.round_record)

    def _form_group(self, last: RoundRecord, group_rank: int, local_ranks: Sequence[int]) -> None:
        """Fills in torch's description of the group; its ranks may read snapshots here."""
        self._snapshots.admit(self._participant.secret)
        group = self._group
        first, world = last.first_worker(group_rank), last.world_size
        group.group_rank, group.group_world_size = group_rank, last.size
        group.master_addr, group.master_port = last.members[0].address, last.store_port
        group.workers = [
            Worker(local_rank, first + index, first + index, world, world)
            for index, local_rank in enumerate(local_ranks)
        ]
        group.state = WorkerState.HEALTHY
        self._started_at = time.monotonic()

    def _start_round(self, last: RoundRecord, group_rank: int) -> None:
        self._form_group(last, group_rank, range(self._config.workers))
        ids = self._start_workers(self._group)
        for worker in self._group.workers:
            worker.id = ids[worker.local_rank]

    # ------------------------------------------------------------ torch's four abstract methods

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        last = self._life.state.round
        assert last is not None
        self._crew.start(last, worker_group.group_rank)
        return {w.local_rank: w.global_rank for w in worker_group.workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._crew.stop(self._config.timeouts.grace)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        alive = self._crew.running()
        return RunResult(WorkerState.HEALTHY if alive else WorkerState.STOPPED)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._closed:
            return
        self._closed = True
        ends = (
            self._importing.end,
            self._watchdogs.stop,
            self._crew.close,
            self._say_farewell,
            self._participant.close,
            self._probes.close,
            self._snapshots.close,
            self._crew.hang_up,
        )
        for end in ends:
            try:
                end()
            except Exception:
                if self._crash is None:  # else it may be for the same reason: end what can be
                    raise
        self._unwatch()
        failed = self._finish is not None and self._finish.exit_code == EXIT_FAILED
        # The report names the error files; what it names must be there.
        self._directory.remove(keep="logs" if failed and self._crew.keeps_errors else "")

    def _say_farewell(self) -> None:
        """Says the last word to the others, now that no worker runs here any more."""
        last, finish = self._life.state.round, self._finish
        if self._crash is not None:
            if last is not None:
                self._participant.leave(last.number, fault_of(self._crash, last), stays=False)
            self._participant.goodbye(_FAREWELL)
        elif finish is not None and finish.outcome is not None:
            # Whoever hosts the store goes last.
            if self._config.endpoint.hosted_here or getattr(self._rendezvous, "hosting", False):
                self._participant.outlast(_OUTLAST)
