"""How workers that keep their process enter a round, and how their node leaves it: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.departure import dismiss_workers, still_needed, wait_to_leave
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    InPlaceWorker,
    Phase,
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
    boot_missing,
    leave_fault,
    stop_workers,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.events.round_events import RoundLeft
from elastic_runtime.protocol.messages import Interrupt
from elastic_runtime.rendezvous.core import membership_events

if TYPE_CHECKING:
    from collections.abc import Iterable


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


def enter_round(state: AgentState, chosen: tuple[int, ...], actions: Iterable[Action]) -> Step:
    """Has these workers take part in the round that this node is in."""
    last = state.round
    assert last is not None
    state = in_phase(state, chosen, WorkerPhase.IN_ROUND, last.number)
    enter = EnterRound(last, state.group_rank, chosen)
    return Step(replace(state, phase=Phase.RUNNING), (*actions, enter), last.reason)


def interrupt_round(state: AgentState, reason: str, actions: list[Action], now: float) -> Step:
    """Has all workers leave the round at once."""
    last, in_place = state.round, state.require_in_place()
    assert last is not None
    inside = in_place.ranks_in(WorkerPhase.IN_ROUND)
    if inside:
        if in_place.interrupted_at is None:
            inquiry = replace(in_place.inquiry, asking=False, overdue=0.0)
            in_place = replace(in_place, interrupted_at=now, inquiry=inquiry)
            actions.append(SetAlarm(now + state.settings.look_for_stuck))
        actions.append(TellWorkers(Interrupt(last.number, reason), inside))
    return leave_if_empty(replace(state, in_place=in_place), actions, now)


def leave_if_empty(state: AgentState, actions: list[Action], now: float) -> Step:
    """Leaves the round if no worker of this node is in it any more."""
    last, in_place = state.round, state.require_in_place()
    assert last is not None
    if in_place.ranks_in(WorkerPhase.IN_ROUND):
        return Step(state, tuple(actions), "workers are leaving the round")
    if in_place.ranks_in(WorkerPhase.RETURNED):  # these are past elastic.run: they start again
        return stop_workers(
            state, state.settings.timeouts.broken_grace, "the round is over", actions
        )
    fault = leave_fault(state)
    actions.append(TellPeople(RoundLeft(last.number, fault.reason)))
    actions.append(SetAlarm(NEVER))
    broken = in_place.interrupted_at is not None or bool(state.faults)
    state = replace(
        state,
        phase=Phase.WAITING,
        faults=(),
        leave_reason=None,
        in_place=replace(in_place, interrupted_at=None),
    )
    if state.after_round is AfterRound.JOIN_AS_NEW:
        return join_as_new(replace(state, after_round=AfterRound.REJOIN), actions)
    waits = still_needed(state, broken=broken)
    stays = state.after_round is not AfterRound.LEAVE or waits
    left = membership_events.LeftRound(last.number, fault, stays=stays, workers=state.available)
    actions.append(TellRendezvous(left))
    if waits:
        in_place = replace(state.require_in_place(), waiting_since=now)
        return wait_to_leave(replace(state, in_place=in_place), actions, Alarm(), now)
    if stays:
        return boot_missing(state, actions)
    return dismiss_workers(state, actions, None, fault.reason, now)


def join_as_new(state: AgentState, actions: list[Action]) -> Step:
    """Joins again, as a node that nobody knows, with the workers that are ready."""
    if state.available:
        actions.append(TellRendezvous(membership_events.Join(workers=state.available)))
    in_place = replace(state.require_in_place(), registered=bool(state.available))
    return boot_missing(replace(state, in_place=in_place), actions)
