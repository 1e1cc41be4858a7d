"""How a round ends on this node, and how its agent does: pure, and the same for all jobs."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.fault_classification import BY_AGENT
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    InPlaceWorker,
    Phase,
    Step,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Finish,
    ForwardSignal,
    SetAlarm,
    StartForNextRound,
    StopWorkers,
    TellPeople,
    TellRendezvous,
    WorkerExited,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT
from elastic_runtime.events.round_events import FaultRetry, RoundLeft, RoundSealed
from elastic_runtime.events.worker_events import WorkerFailed, WorkerKilled
from elastic_runtime.protocol.records import ASKED, FAILED, KILLED, PLANNED, FaultReport
from elastic_runtime.rendezvous.core import membership_events
from elastic_runtime.rendezvous.core.formation.failure_budget import root_cause

if TYPE_CHECKING:
    from elastic_runtime.protocol.round_records import RoundRecord


def report_round(state: AgentState, last: RoundRecord, group_rank: int) -> list[Action]:
    """Tells people of a round that this node is in, and of a failure that it follows.

    Args:
        state: before that round.
        last: the round.
        group_rank: this node's rank in it.
    """
    reports: list[Action] = []
    if last.budget.failures > (state.round.budget.failures if state.round else 0):
        retry = FaultRetry(last.reason, last.budget.failures, state.settings.max_restarts)
        reports.append(TellPeople(retry))
    sealed = RoundSealed(
        last.number,
        workers=last.world_size,
        nodes=last.size,
        reason=last.reason,
        group_rank=group_rank,
        restarts=last.budget.restarts,
    )
    return [*reports, TellPeople(sealed)]


def start_missing(state: AgentState) -> Step:
    """In place: starts every worker that has no process, to be ready for a round."""
    missing = tuple(sorted(set(range(state.settings.workers)) - state.alive))
    if not missing or state.leave_request:
        return Step(state)
    in_place = state.require_in_place()
    workers = {**in_place.workers, **dict.fromkeys(missing, InPlaceWorker())}
    state = replace(
        state, alive=state.alive | set(missing), in_place=replace(in_place, workers=workers)
    )
    return Step(state, (StartForNextRound(missing),), "workers start")


def free_if_leaving(state: AgentState, fault: FaultReport) -> FaultReport:
    """A worker's failure, which costs the job nothing once this node was asked to leave: the same
    signal may have reached it, or a process of its own."""
    return replace(fault, kind=ASKED) if state.leave_request and fault.kind == FAILED else fault


def report_exit(event: WorkerExited, fault: FaultReport) -> TellPeople:
    """Tells people of the unwanted end of a worker."""
    kind = WorkerKilled if fault.kind == KILLED else WorkerFailed
    ended = kind(
        fault.rank,
        exit_code=event.code,
        local_rank=event.local_rank,
        reason=fault.reason,
        echo=fault.consequence,
        by_agent=fault.signature == BY_AGENT,
    )
    return TellPeople(ended)


def forward_signal(signum: int) -> tuple[Action, ...]:
    """What a script gets of a signal when its workers save and leave by themselves.

    Not of those two: the one is how they are asked to leave without an agent, and Python makes an
    exception of the other where the script says nothing about it, which would end them at once.
    """
    return () if signum in (signal.SIGTERM, signal.SIGINT) else (ForwardSignal(signum),)


# ---------------------------------------------------------------- the end of a round


def stop_workers(
    state: AgentState, grace: float, reason: str, signum: int = signal.SIGTERM
) -> Step:
    """Ends all workers; if there is none, the round is over at once."""
    state = state.stopping()
    state = replace(state, facts=replace(state.facts, leaving=False))
    if not state.alive:
        return workers_ended(state)
    return Step(state, (StopWorkers(grace, signum=signum), SetAlarm(NEVER)), reason)


def workers_ended(state: AgentState) -> Step:
    """The last worker of the round has ended on this node."""
    last = state.round
    assert last is not None
    if state.after_round is AfterRound.END:
        return end_agent(state)
    facts = state.facts
    well = not facts.faults and not facts.left_at_step and not facts.stop_ordered
    if well and state.after_round is AfterRound.REJOIN:
        done = TellRendezvous(membership_events.Done(last.number))
        return Step(replace(state, phase=Phase.DONE), (done,), "ended well")
    fault = leave_fault(state)
    report = TellPeople(RoundLeft(last.number, fault.reason))
    match state.after_round:
        case AfterRound.JOIN_AS_NEW:
            return _join_as_new(state).preceded_by(report)
        case AfterRound.LEAVE:
            left = TellRendezvous(membership_events.LeftRound(last.number, fault, stays=False))
            return end_agent(state).preceded_by(report, left)
    state = replace(state, phase=Phase.WAITING)
    workers = state.available if state.in_place else None
    left = TellRendezvous(
        membership_events.LeftRound(last.number, fault, stays=True, workers=workers)
    )
    follows = start_missing(state) if state.in_place else Step(state, (), fault.reason)
    return follows.preceded_by(report, left)


def leave_fault(state: AgentState) -> FaultReport:
    """Why this node leaves its round."""
    last = state.round
    assert last is not None
    fault = root_cause(state.facts.faults) or state.facts.leave_reason
    fault = fault or FaultReport(last.number, PLANNED, "the membership changes")
    if state.after_round is AfterRound.LEAVE and not state.facts.faults:
        return replace(fault, kind=ASKED)
    return fault


def _join_as_new(state: AgentState) -> Step:
    state = replace(state, phase=Phase.WAITING, after_round=AfterRound.REJOIN)
    if not state.fork_server_ready:
        return Step(replace(state, phase=Phase.STARTING))
    if state.in_place:
        unregistered = replace(state.in_place, registered=False)
        return start_missing(replace(state, in_place=unregistered))
    return Step(state, (TellRendezvous(membership_events.Join()),), "joins as a new node")


# ---------------------------------------------------------------- the end of the agent


def finish_with(state: AgentState, finish: Finish) -> Step:
    """Ends this agent, its workers first."""
    state = replace(state, after_round=AfterRound.END, finish=finish)
    if state.alive and state.phase in (Phase.RUNNING, Phase.STOPPING):
        return stop_workers(state, state.settings.timeouts.broken_grace, finish.message)
    return end_agent(state)


def leave_for_lack_of_resources(state: AgentState, fault: FaultReport) -> AgentState:
    """Has this node leave the job after its round: its machine has refused a worker for too long.

    The others continue without it if they are enough; here, the next try would fail as well.
    """
    if state.after_round not in (AfterRound.REJOIN, AfterRound.JOIN_AS_NEW):
        return state
    finish = Finish(EXIT_FAILED, fault.reason)
    return replace(state, after_round=AfterRound.LEAVE, finish=finish)


def end_agent(state: AgentState) -> Step:
    """Ends this agent, now that no worker of it is in a round."""
    finish = state.finish or Finish(EXIT_LEFT, "left")
    state = replace(state, phase=Phase.ENDED)
    return Step(state, (TellRendezvous(membership_events.Goodbye()), finish), finish.message)


def leave_message(text: str, name: str, saved: int, accompanied: bool) -> str:
    """What a node says that has left because it was asked to.

    Args:
        text: that it has.
        name: of the node.
        saved: the step that its workers have saved; -1: none.
        accompanied: others are known that continue.
    """
    summary = f"{name} {text}; step {saved} is saved" if saved >= 0 else f"{name} {text}"
    return f"{summary}; other nodes may continue" if accompanied else summary
