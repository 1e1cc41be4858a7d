"""How workers that keep their process enter a round, and how their node leaves it: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.in_place_leaving import (
    dismiss_workers,
    still_needed,
    wait_to_leave,
)
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    InPlaceWorker,
    Phase,
    RoundFacts,
    Step,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    EnterRound,
    SetAlarm,
    TellPeople,
    TellRendezvous,
    TellWorkers,
)
from elastic_runtime.agent.lifecycle.termination import (
    leave_fault,
    start_missing,
    stop_workers,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.events.round_events import RoundLeft
from elastic_runtime.protocol.messages import Interrupt
from elastic_runtime.rendezvous.core import membership_events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.protocol.records import FaultReport


def in_phase(
    state: AgentState, local_ranks: Iterable[int], phase: WorkerPhase, number: int | None = None
) -> AgentState:
    """With workers in another phase; with a number, they have entered that round."""
    in_place = state.require_in_place()
    workers = dict(in_place.workers)
    for rank in local_ranks:
        if rank in workers:
            since = workers[rank].since if number is None else min(workers[rank].since, number)
            workers[rank] = InPlaceWorker(phase, since)
    return replace(state, in_place=replace(in_place, workers=workers))


def enter_round(state: AgentState, chosen: tuple[int, ...]) -> Step:
    """Has these workers take part in the round that this node is in."""
    last = state.round
    assert last is not None
    state = in_phase(state, chosen, WorkerPhase.IN_ROUND, last.number)
    enter = EnterRound(last, state.group_rank, chosen)
    return Step(replace(state, phase=Phase.RUNNING), (enter,), last.reason)


def interrupt_round(state: AgentState, reason: str, now: float) -> Step:
    """Has all workers leave the round at once."""
    last, in_place = state.round, state.require_in_place()
    assert last is not None
    inside = in_place.ranks_in(WorkerPhase.IN_ROUND)
    if not inside:
        return leave_if_empty(state, now)
    orders: tuple[Action, ...] = (TellWorkers(Interrupt(last.number, reason), inside),)
    if in_place.interrupted_at is None:
        inquiry = replace(in_place.inquiry, asking=False, overdue=0.0)
        in_place = replace(in_place, interrupted_at=now, inquiry=inquiry)
        orders = (SetAlarm(now + state.settings.look_for_stuck), *orders)
    return Step(replace(state, in_place=in_place), orders, "workers are leaving the round")


def leave_if_empty(state: AgentState, now: float) -> Step:
    """Leaves the round if no worker of this node is in it."""
    last, in_place = state.round, state.require_in_place()
    assert last is not None
    if in_place.ranks_in(WorkerPhase.IN_ROUND):
        return Step(state, (), "workers are leaving the round")
    if in_place.ranks_in(WorkerPhase.RETURNED):  # these are past elastic.run: they start again
        return stop_workers(state, state.settings.timeouts.broken_grace, "the round is over")
    fault = leave_fault(state)
    broken = in_place.interrupted_at is not None or bool(state.facts.faults)
    in_place = replace(in_place, interrupted_at=None)
    state = replace(state, phase=Phase.WAITING, facts=RoundFacts(), in_place=in_place)
    follows = _after_leaving(state, fault, now, broken=broken)
    return follows.preceded_by(TellPeople(RoundLeft(last.number, fault.reason)), SetAlarm(NEVER))


def _after_leaving(state: AgentState, fault: FaultReport, now: float, *, broken: bool) -> Step:
    """What follows once no worker of this node is in the round."""
    assert state.round is not None
    if state.after_round is AfterRound.JOIN_AS_NEW:
        return join_as_new(replace(state, after_round=AfterRound.REJOIN))
    waits = still_needed(state, broken=broken)
    stays = state.after_round is not AfterRound.LEAVE or waits
    if waits:
        in_place = replace(state.require_in_place(), waiting_since=now)
        follows = wait_to_leave(replace(state, in_place=in_place), Alarm(), now)
    elif stays:
        follows = start_missing(state)
    else:
        follows = dismiss_workers(state, None, fault.reason, now)
    left = membership_events.LeftRound(
        state.round.number, fault, stays=stays, workers=state.available
    )
    return follows.preceded_by(TellRendezvous(left))


def join_as_new(state: AgentState) -> Step:
    """Joins again, as a new node, with the workers that are ready."""
    in_place = replace(state.require_in_place(), registered=bool(state.available))
    follows = start_missing(replace(state, in_place=in_place))
    if not state.available:
        return follows
    return follows.preceded_by(TellRendezvous(membership_events.Join(workers=state.available)))
