"""The handlers of ``lifecycle_step`` for workers that are started for each round: pure.

They also hold in place once workers are being stopped, or are past ``elastic.run``: from there on
only the ends of their processes count.
"""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.fault_classification import signal_name
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    Phase,
    RoundFacts,
    Step,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    Finish,
    LeaveRequested,
    SetAlarm,
    StartWorkers,
    StopWorkers,
    TellPeople,
    TellRendezvous,
    TellWorkers,
    WorkerExited,
)
from elastic_runtime.agent.lifecycle.termination import (
    end_agent,
    forward_signal,
    free_if_leaving,
    leave_for_lack_of_resources,
    report_exit,
    report_round,
    stop_workers,
    workers_ended,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.events.node_events import NodeExcluded, NodeLeaving
from elastic_runtime.protocol.messages import Dismiss, Leave
from elastic_runtime.protocol.records import ASKED, LACKS_RESOURCES, PLANNED, FaultReport
from elastic_runtime.rendezvous.core import membership_events
from elastic_runtime.system.repeated_signals import StopRequest

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.notices import Excluded, Fenced, Sealed, Switch, Waiting


def sealed(state: AgentState, event: Sealed, now: float) -> Step:
    """This node is in a new round: its workers are started."""
    if state.phase is not Phase.WAITING:
        return Step(state, (), "not waiting for a round")
    last, group_rank = event.round, event.group_rank
    reports = report_round(state, last, group_rank)
    state = replace(
        state,
        phase=Phase.RUNNING,
        after_round=AfterRound.REJOIN,
        round=last,
        group_rank=group_rank,
        facts=RoundFacts(),
        alive=frozenset(range(state.settings.workers)),
    )
    return Step(state, (*reports, StartWorkers(last, group_rank)), last.reason)


def worker_exited(state: AgentState, event: WorkerExited, now: float) -> Step:
    """A worker has ended: if that was not requested, the others are stopped as well."""
    last, in_place = state.round, state.in_place
    if last is None or (event.round != last.number and not in_place):
        return Step(state)
    if event.local_rank not in state.alive:
        return Step(state)
    state = state.without_worker(event.local_rank)
    if event.left_at_step:
        state = replace(state, facts=replace(state.facts, left_at_step=True))
    ordered = state.facts.stop_ordered
    if event.fault is None or event.left_at_step or (ordered and event.code < 0):
        return _after_exit(state)
    fault = free_if_leaving(state, event.fault)
    state = state.with_fault(fault)
    if ordered:
        return _after_exit(state)
    state = state.stopping()
    if fault.signature == LACKS_RESOURCES:
        state = leave_for_lack_of_resources(state, fault)
    stop = (StopWorkers(state.settings.timeouts.broken_grace), SetAlarm(NEVER))
    return _after_exit(state, *stop).preceded_by(report_exit(event, fault))


def _after_exit(state: AgentState, *if_others_run: Action) -> Step:
    """What follows from the end of a worker: actions if others run, else the end of the round."""
    return Step(state, if_others_run) if state.alive else workers_ended(state)


def switch(state: AgentState, event: Switch, now: float) -> Step:
    """The round is to be left: at once if it is broken, at a step boundary otherwise."""
    if state.round is None or event.round != state.round.number:
        return Step(state)
    state = state.with_leave_reason(FaultReport(event.round, PLANNED, event.reason))
    if state.phase is Phase.DONE:
        return workers_ended(state.stopping())
    if state.phase not in (Phase.RUNNING, Phase.STOPPING):
        return Step(state)
    facts = state.facts
    if event.broken:
        if facts.stop_ordered and not facts.leaving:
            return Step(state)
        return stop_workers(state, state.settings.timeouts.broken_grace, event.reason)
    if facts.stop_ordered or facts.leaving:
        return Step(state)
    return _ask_workers_to_leave(state, event.reason, now)


def _ask_workers_to_leave(
    state: AgentState, reason: str, now: float, signum: int = signal.SIGTERM
) -> Step:
    """Asks the workers to leave: at a step boundary if they can, else by a signal.

    In place, replacements that are in no round yet have nothing to save, and are ended.
    """
    last = state.round
    starting, ready = state.ranks_in(WorkerPhase.STARTING), state.ranks_in(WorkerPhase.READY)
    asked = state.alive - {*starting, *ready}
    if last is None or not asked <= state.can_leave or not asked:
        return stop_workers(state, state.settings.timeouts.grace, reason, signum=signum)
    actions: list[Action] = [*forward_signal(signum)]
    if starting:
        actions.append(StopWorkers(0.0, starting))
    if ready:
        actions.append(TellWorkers(Dismiss(), ready))
    to = tuple(sorted(asked)) if starting or ready else ()
    actions.append(TellWorkers(Leave(last.number, reason), to))
    actions.append(SetAlarm(now + state.settings.timeouts.grace))
    state = replace(state, facts=replace(state.facts, leaving=True))
    return Step(state, tuple(actions), reason)


def alarm(state: AgentState, event: Alarm, now: float) -> Step:
    """The time is over in which workers were to leave at a step boundary."""
    if state.facts.leaving:
        reason = "the workers did not leave in time"
        return stop_workers(state, state.settings.timeouts.broken_grace, reason)
    return Step(state)


def leave_requested(state: AgentState, event: LeaveRequested, now: float) -> Step:
    """A signal asks the node to leave; another one, to end at once."""
    if state.leave_request:
        finish = Finish(128 + event.signum, "")
        state = replace(state, after_round=AfterRound.END, finish=finish)
        if not state.alive:
            return end_agent(state)
        return Step(state.stopping(), (StopWorkers(0.0),), "asked twice")
    report = report_leaving(event)
    alone = state.round is None or state.round.size == 1
    state = replace(
        state,
        leave_request=StopRequest(event.signum, now),
        after_round=AfterRound.LEAVE,
        finish=Finish(EXIT_LEFT, "stopped on request" if alone else "left on request"),
    )
    leaving = TellRendezvous(membership_events.Leaving())
    match state.phase:
        case Phase.STARTING | Phase.WAITING | Phase.DONE:
            return end_agent(state).preceded_by(report)
        case Phase.STOPPING:
            return Step(state, (report, leaving), "leaving after the stop")
    number = state.round.number if state.round else 0
    reason = FaultReport(number, ASKED, "the node was asked to leave")
    state = replace(state, facts=replace(state.facts, leave_reason=reason))
    asked = _ask_workers_to_leave(state, "this node was asked to leave", now, event.signum)
    return asked.preceded_by(report, leaving)


def report_leaving(event: LeaveRequested) -> TellPeople:
    """Tells people that this node leaves."""
    return TellPeople(NodeLeaving(f"asked to by {signal_name(event.signum)}"))


def excluded(state: AgentState, event: Excluded | Fenced, now: float) -> Step:
    """The others continue without this node, or may: it stops its workers, and joins again."""
    report = TellPeople(NodeExcluded(event.reason))
    if state.phase in (Phase.RUNNING, Phase.STOPPING) and state.alive:
        state = replace(state, after_round=new_unless_leaving(state))
        stops = stop_workers(state, state.settings.timeouts.broken_grace, event.reason)
        return stops.preceded_by(report)
    if state.phase is Phase.STARTING:
        return Step(state, (report,), event.reason)
    if state.after_round is AfterRound.LEAVE:
        return end_agent(state).preceded_by(report)
    state = replace(state, phase=Phase.WAITING, after_round=AfterRound.REJOIN)
    return Step(state, (report, TellRendezvous(membership_events.Join())), event.reason)


def waiting(state: AgentState, event: Waiting, now: float) -> Step:
    """There is no round yet: reported unless this node is leaving."""
    if state.leave_request:
        return Step(state)
    return Step(state, (TellPeople(JobWaiting(**asdict(event))),), event.reason)


def new_unless_leaving(state: AgentState) -> AfterRound:
    """What follows the round of a node that is not a member now."""
    rejoins = state.after_round is AfterRound.REJOIN
    return AfterRound.JOIN_AS_NEW if rejoins else state.after_round
