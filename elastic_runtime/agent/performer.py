"""Performs what ``lifecycle_step`` decides: on workers, in the rendezvous, and for people."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from elastic_runtime.agent.lifecycle.lifecycle_types import (
    EnterRound,
    Finish,
    ForwardSignal,
    HostStore,
    KillWorkers,
    SetAlarm,
    StartForkServer,
    StartForNextRound,
    StartWorkers,
    StopWorkers,
    TellPeople,
    TellRendezvous,
    TellWorkers,
)
from elastic_runtime.agent.lifecycle.termination import leave_message
from elastic_runtime.agent.workers.worker_environment import provisional
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.events.worker_events import WorkersReplaced
from elastic_runtime.limits import GOODBYE_TIMEOUT
from elastic_runtime.protocol.messages import Change, Interrupt, Leave
from elastic_runtime.protocol.round_records import Member
from elastic_runtime.rendezvous.core.membership_events import (
    Done,
    Goodbye,
    Join,
    LeftRound,
    WorkersAvailable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.agent.lifecycle.lifecycle_state import AgentState, Step
    from elastic_runtime.agent.lifecycle.lifecycle_types import Deed
    from elastic_runtime.agent.metrics.job_reporter import JobReporter
    from elastic_runtime.agent.snapshot_server import SnapshotHost
    from elastic_runtime.agent.start_notice import Starting
    from elastic_runtime.agent.torch_agent import TorchAgent
    from elastic_runtime.agent.workers.worker_group import WorkerGroup
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events.event import Event
    from elastic_runtime.protocol.records import FaultReport
    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.rendezvous.core.membership_events import AgentEvent
    from elastic_runtime.rendezvous.participant import Participant


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What an agent acts with.

    Attributes:
        workers: those of this node.
        participant: its part in the rendezvous.
        reporter: tells people.
        snapshots: the memory for snapshots that other nodes may read.
        torch: torch's part of the agent: its metrics, events and results.
        importing: says that a start takes long while the fork server imports.
    """

    workers: WorkerGroup
    participant: Participant
    reporter: JobReporter
    snapshots: SnapshotHost
    torch: TorchAgent
    importing: Starting


class Performer:
    """Performs the actions of one agent, in its main thread.

    Args:
        config: the settings.
        address: where other nodes reach this one.
        parts: what it acts with.

    Attributes:
        alarm: when ``Alarm`` is due, in seconds on the monotonic clock.
        finish: how the agent ends; None: it runs on.
    """

    def __init__(self, config: JobConfig, address: str, parts: AgentParts) -> None:
        self.alarm = float("inf")
        self.finish: Finish | None = None
        self._config = config
        self._address = address
        self._parts = parts
        self._workers = parts.workers
        self._participant = parts.participant
        self._round_began = time.monotonic()

    def perform(self, step: Step) -> None:
        """Performs the actions of a step, in order; but people are told last, as they can wait."""
        reports: list[Event] = []
        try:
            for action in step.actions:
                if isinstance(action, TellPeople):
                    reports.append(self._with_ranks(action.event))
                    continue
                if isinstance(action, TellRendezvous) and isinstance(action.event, Goodbye):
                    self._tell_people(reports)  # they need not wait for the store's answer
                self._perform(action, step.state)
        finally:
            self._tell_people(reports)

    def _tell_people(self, reports: list[Event]) -> None:
        while reports:
            self._parts.reporter.tell(reports.pop(0))

    def _perform(self, action: Deed, state: AgentState) -> None:
        workers = self._workers
        match action:
            case StartForkServer():
                self._parts.importing.begin()
                workers.start_server()
            case StartWorkers(last, group_rank):
                self._form_group(last, group_rank, range(self._config.workers))
                workers.start(last, group_rank)
                self._parts.torch.name_workers()
            case StartForNextRound(local_ranks):
                workers.start_some(*self._provisional(state), local_ranks)
            case EnterRound(last, group_rank, local_ranks):
                self._form_group(last, group_rank, local_ranks)
                workers.enter(last, group_rank, local_ranks)
            case TellWorkers(message, local_ranks):
                if isinstance(message, Leave | Interrupt | Change):
                    self._parts.reporter.interrupted(ordered=True)
                workers.tell(message, local_ranks)
            case StopWorkers(grace, local_ranks, signum):
                self._parts.reporter.interrupted()
                workers.stop(grace, local_ranks, signum)
            case ForwardSignal(signum):
                workers.forward_signal(signum)
            case KillWorkers(local_ranks, why):
                workers.kill(local_ranks, why)
            case HostStore(port):
                workers.host_store(port)
            case TellRendezvous(event):
                self._tell_rendezvous(event)
            case SetAlarm(at):
                self.alarm = at
            case Finish():
                self.finish = self._with_message(action, state)
            case _:
                assert_never(action)

    def _with_ranks(self, event: Event) -> Event:
        """A report that names local ranks, with the ranks that these workers have now."""
        if not (isinstance(event, WorkersReplaced) and event.local_ranks):
            return event
        return replace(event, ranks=[self._workers.rank_of(rank) for rank in event.local_ranks])

    def _form_group(self, last: RoundRecord, group_rank: int, local_ranks: Sequence[int]) -> None:
        """A round begins: its ranks may read snapshots here."""
        self._parts.snapshots.admit(self._participant.secret)
        self._parts.torch.form_group(last, group_rank, local_ranks)
        self._round_began = time.monotonic()

    def _provisional(self, state: AgentState) -> tuple[RoundRecord, int]:
        """The round that a worker finds in its environment before it enters one."""
        part, config = self._participant, self._config
        me = Member(part.node, config.node_name, self._address, config.workers)
        return provisional(me, state.round or part.state.round_record)

    def _tell_rendezvous(self, event: AgentEvent) -> None:
        """Adds what only this node's workers know, and tells the rendezvous."""
        workers, part = self._workers, self._participant
        if isinstance(event, WorkersAvailable):
            workers.host_store()
        if isinstance(event, Join | WorkersAvailable):
            workers.connect_ahead(part.state.round_record)
        if isinstance(event, LeftRound):
            event = replace(event, fault=self._with_progress(event.fault))
            self._parts.reporter.left(event.fault.step)
        if isinstance(event, Join | WorkersAvailable | LeftRound):
            event = replace(event, store_port=workers.reserve_port())
        if isinstance(event, Done):
            event = replace(event, step=workers.step())
        part.say(event)
        if isinstance(event, Goodbye):
            part.wait_for_goodbye(GOODBYE_TIMEOUT)

    def _with_progress(self, fault: FaultReport) -> FaultReport:
        """The report with what this node's workers had reached, for whatever reason they ended."""
        lived = time.monotonic() - self._round_began
        step, lifetime = max(fault.step, self._workers.step()), max(fault.lifetime, lived)
        return replace(fault, step=step, lifetime=lifetime, inner=self._workers.inner())

    def _with_message(self, finish: Finish, state: AgentState) -> Finish:
        if finish.exit_code != EXIT_LEFT:
            return finish
        saved = self._workers.step() if state.facts.left_at_step else -1
        others, name = self._participant.accompanied, self._config.node_name
        return replace(finish, message=leave_message(finish.message, name, saved, others))
