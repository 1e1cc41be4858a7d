"""The agent of one node: its loop.

One queue carries everything that can happen (ends of workers and what they say, notices of the
rendezvous, signals), and one thread, the main one, takes from it: ``lifecycle_step`` decides what
follows, ``Performer`` performs it. It never polls.
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_runtime import events
from elastic_runtime.agent.crash import ended_by, fault_of
from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.lifecycle_state import LifecycleSettings
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    ForkServerReady,
    LeaveRequested,
    ProgressSeen,
    WorkerExited,
    WorkerSaid,
)
from elastic_runtime.agent.metrics.job_reporter import JobReporter
from elastic_runtime.agent.performer import AgentParts, Performer
from elastic_runtime.agent.runtime_dir import RuntimeDir
from elastic_runtime.agent.snapshot_server import SnapshotHost
from elastic_runtime.agent.start_notice import Starting
from elastic_runtime.agent.torch_agent import TorchAgent
from elastic_runtime.agent.workers.roster import WorkerStarted
from elastic_runtime.agent.workers.torch_watchdogs import Watchdogs
from elastic_runtime.agent.workers.worker_group import ChannelMessage, WorkerGroup
from elastic_runtime.defaults import AGENT_BEAT
from elastic_runtime.errors import EXIT_FAILED, ElasticError
from elastic_runtime.events.node_events import ListeningWide
from elastic_runtime.limits import GOODBYE_TIMEOUT, HOST_STAYS
from elastic_runtime.protocol.messages import Left, Note
from elastic_runtime.rendezvous.core.membership_events import Goodbye, LeftRound
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.probe import ProbeServer
from elastic_runtime.system import threads
from elastic_runtime.system.listening import where_reached
from elastic_runtime.topology import topology_text

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.agent.server.api import WorkerSpec as TorchSpec
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from elastic_runtime.agent.lifecycle.lifecycle_types import Finish, LifecycleEvent
    from elastic_runtime.agent.metrics.metrics_fold import Watch
    from elastic_runtime.agent.workers.fork_client import EarlyForkServer
    from elastic_runtime.agent.workers.worker_processes import WorkerEvent
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events import Emit
    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.rendezvous.store_contract import Store
    from elastic_runtime.system.listening import Where

    Item = LifecycleEvent | WorkerEvent | ChannelMessage | threads.Crash


class ElasticAgent:
    """One node's agent.

    Args:
        config: the settings.
        spec: torch's description of the workers; its handler only names the run.
        store: the rendezvous store, not yet started.
        address: where other nodes reach this one.
        emit: where events go.
        early: the first fork server, if it has been started already.
        watch: where that goes which only measurements need; None: nothing is measured.
    """

    def __init__(
        self,
        config: JobConfig,
        spec: TorchSpec,
        store: Store,
        address: str,
        emit: Emit,
        early: EarlyForkServer | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._crash: threads.Crash | None = None
        self._closed = False
        self._lifecycle = lifecycle_step.begin(LifecycleSettings.of(config))
        # For threads that must not look at workers that come and go.
        self._turned, self._reached, self._busy = time.time(), -1, False

        self._directory = RuntimeDir()
        self._unwatch = threads.watch(self._inbox.put)
        where = where_reached(address)
        self._snapshots = SnapshotHost(config, address, where.address)
        self._workers = self._make_workers(where, early)
        self._probes = ProbeServer(where.address, self._introduce, lambda: self._participant.secret)
        if where.why:
            emit(ListeningWide(address, where.why))
        self._participant = self._make_participant(store, address)
        self._watchdogs = Watchdogs(
            config.run_id, self._directory.path, config.health_port, lambda: self._turned
        )
        self._importing = Starting(emit, "importing what the script needs")
        self._torch = TorchAgent(spec, self._loop, self._close)
        self._reporter = JobReporter(
            config,
            emit,
            watch,
            keep=self._participant.record_event,
            node=lambda: self._participant.node,
            state=lambda: self._lifecycle.state,
            progress=self._workers.progress,
        )
        parts = AgentParts(
            self._workers,
            self._participant,
            self._reporter,
            self._snapshots,
            self._torch,
            self._importing,
        )
        self._performer = Performer(config, address, parts)

    def _make_workers(self, where: Where, early: EarlyForkServer | None) -> WorkerGroup:
        memory = self._snapshots.memory
        try:
            return WorkerGroup(
                self._config,
                self._directory,
                lambda: self._watchdogs.environment(),
                self._inbox.put,
                where,
                early,
                memory.encode() if memory else "",
            )
        except BaseException:  # such as a log directory that cannot be
            self._unwatch()
            self._snapshots.close()
            self._directory.remove()
            raise

    def _make_participant(self, store: Store, address: str) -> Participant:
        config = self._config
        identity = NodeIdentity(
            config.node_name,
            address,
            config.workers,
            self._probes.port,
            config.settings,
            config.node_life,
            topology_text(config.node_topology),
        )
        return Participant(store, Policy.of(config), identity, self._inbox.put)

    # ------------------------------------------------------------ for the caller

    def run(self, role: str) -> RunResult:
        """Runs the agent to its end.

        Args:
            role: of the workers, as torch's metrics call it.

        Raises:
            ElasticError: the user has asked for something impossible.
        """
        return self._torch.run(role)

    def ask_to_leave(self, signum: int) -> None:
        """Asks the agent to leave; a second time: at once. Safe in a signal handler."""
        self._inbox.put(LeaveRequested(signum))

    @property
    def finish(self) -> Finish | None:
        """How the agent ended."""
        return self._performer.finish

    @property
    def round(self) -> RoundRecord | None:
        """The last round that this node was in."""
        return self._lifecycle.state.round

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """The workers of the last round that failed here, by global rank."""
        return self._workers.failures

    # ------------------------------------------------------------ the loop

    def _loop(self) -> RunResult:
        try:
            self._turn_until_finished()
        except ElasticError:  # it says itself whose mistake it is
            raise
        except Exception as error:
            self._crashed(threads.Crash.of("main", error))
        finish = self._performer.finish
        assert finish is not None
        return self._torch.result(finish, self._workers.failures, self._workers.value)

    def _turn_until_finished(self) -> None:
        self._watchdogs.start()
        self._performer.perform(self._lifecycle)
        while self._performer.finish is None:
            self._participant.beat()
            self._turned, self._reached = time.time(), self._workers.step()
            self._reporter.turned()
            self._look_for_progress()
            item = self._next()
            if isinstance(item, threads.Crash):
                self._crashed(item)
                return
            event = self._event_of(item) if item is not None else None
            if event is not None:
                self._take(event)

    def _next(self) -> Item | None:
        """The next event; None if there was none for one beat (``AGENT_BEAT``)."""
        due = self._performer.alarm
        try:
            return self._inbox.get(timeout=max(0.0, min(due - time.monotonic(), AGENT_BEAT)))
        except queue.Empty:
            if time.monotonic() < due:
                self._reporter.give_hints()
                return None
            self._performer.alarm = float("inf")
            return Alarm()

    def _take(self, event: LifecycleEvent) -> None:
        self._lifecycle = lifecycle_step.step(self._lifecycle.state, event, time.monotonic())
        self._performer.perform(self._lifecycle)

    def _event_of(
        self, item: LifecycleEvent | WorkerEvent | ChannelMessage
    ) -> LifecycleEvent | None:
        """Adds what is known here to an event; None if it was only to be reported."""
        match item:
            case ChannelMessage():
                return self._heard(item)
            case WorkerStarted():
                return None
            case events.Event():
                self._reporter.tell(item)
                return None
            case ForkServerReady():
                self._importing.end()
                return item
            case WorkerExited():
                exited = self._workers.explained(item, self._lifecycle.state.facts.stop_ordered)
                if exited.fault is not None:
                    self._reporter.interrupted()
                return exited
            case LeaveRequested() | Alarm():
                part = self._participant
                served = part.state.contact.connected
                return replace(item, alone=part.alone, leads=part.leads, served=served)
            case _:
                return item

    def _heard(self, item: ChannelMessage) -> LifecycleEvent | None:
        said = self._workers.heard(item)
        if isinstance(said, Note):
            self._reporter.note(said)
            return None
        if isinstance(said, WorkerSaid) and isinstance(said.message, Left):
            if not said.message.planned:
                self._reporter.interrupted()
        return said

    def _look_for_progress(self) -> None:
        """In place: has the lifecycle measure how long the present step takes."""
        if self._lifecycle.state.in_place is None:
            return
        progress = self._workers.step_progress()
        self._busy = progress.busy
        self._take(ProgressSeen(progress, messages_wait=not self._inbox.empty()))

    def _introduce(self) -> dict[str, Any]:
        """What this node answers to a probe."""
        last = self._lifecycle.state.round
        return {
            "node": self._participant.node,
            "name": self._config.node_name,
            "phase": self._lifecycle.state.phase.value,
            "round": last.number if last else 0,
            "step": self._reached,
            "busy": self._busy,
        }

    def _crashed(self, crash: threads.Crash) -> None:
        """A defect of this package ends this agent, which tells the others at once."""
        self._crash = crash
        self._performer.finish, event = ended_by(crash, self._config)
        with suppress(Exception):
            self._reporter.tell(event)

    # ------------------------------------------------------------ the end

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ends = (
            self._importing.end,
            self._watchdogs.stop,
            self._workers.close,
            self._tell_the_rest,
            self._say_farewell,
            self._participant.close,
            self._probes.close,
            self._snapshots.close,
            self._workers.hang_up,
        )
        for end in ends:
            try:
                end()
            except Exception:
                if self._crash is None:  # else it may be for the same reason: end what can be
                    raise
        self._unwatch()
        finish = self._performer.finish
        failed = finish is not None and finish.exit_code == EXIT_FAILED
        # The report names the error files; what it names must be there.
        self._directory.remove(keep="logs" if failed and self._workers.keeps_errors else "")

    def _tell_the_rest(self) -> None:
        """Tells people what came after the last turn, such as of a log disk that was slow."""
        with suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, events.Event):
                    self._reporter.tell(item)

    def _say_farewell(self) -> None:
        """Sends this node's last message to the others, now that no worker runs here."""
        last, finish, part = self._lifecycle.state.round, self._performer.finish, self._participant
        if self._crash is not None:
            if last is not None:
                part.say(LeftRound(last.number, fault_of(self._crash, last), stays=False))
            part.say(Goodbye())
            part.wait_for_goodbye(GOODBYE_TIMEOUT)
        elif finish is not None and finish.outcome is not None:
            part.wait_for_others_to_leave(HOST_STAYS)
