"""How a round ends on this node, and how an agent's life does: pure, and the same for all jobs."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.fault_classification import BY_AGENT
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    BootWorkers,
    Finish,
    PassOn,
    Phase,
    Report,
    SayDone,
    SayGoodbye,
    SayJoin,
    SayLeft,
    Seat,
    Seated,
    SetAlarm,
    State,
    Step,
    StopWorkers,
    Then,
    WorkerExited,
)
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT
from elastic_runtime.events.round_events import RoundLeft, RoundSealed
from elastic_runtime.events.worker_events import WorkerFailed, WorkerKilled
from elastic_runtime.protocol.records import ASKED, FAILED, KILLED, PLANNED, FaultReport
from elastic_runtime.rendezvous.core.formation.failure_budget import root_cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_runtime.protocol.records import Budget, RoundRecord


def begun(last: RoundRecord, group_rank: int) -> Report:
    """Tells people of a round that this node is in."""
    sealed = RoundSealed(
        last.number,
        workers=last.world_size,
        nodes=last.size,
        reason=last.reason,
        group_rank=group_rank,
        restarts=last.budget.restarts,
    )
    return Report(sealed)


def boot(state: State, actions: Iterable[Action] = ()) -> Step:
    """In place: starts every worker that has no process, to be ready for a round."""
    missing = tuple(sorted(set(range(state.settings.workers)) - state.alive))
    if not missing or state.asked:
        return Step(state, tuple(actions))
    seats = {**state.seats, **dict.fromkeys(missing, Seated())}
    state = replace(state, alive=state.alive | set(missing), seats=seats)
    return Step(state, (*actions, BootWorkers(missing)), "workers start")


def moved(state: State, moves: Mapping[int, Seat], number: int | None = None) -> State:
    """With workers in other seats; with a number, those that have entered that round."""
    seats = dict(state.seats)
    for rank, seat in moves.items():
        if rank in seats:
            since = seats[rank].since if number is None else min(seats[rank].since, number)
            seats[rank] = Seated(seat, since)
    return replace(state, seats=seats)


def as_asked(state: State, fault: FaultReport) -> FaultReport:
    """A worker's failure once this node was asked to leave: the same signal may have reached it,
    or a process of its own. It costs the job nothing, as this node is on its way out."""
    return replace(fault, kind=ASKED) if state.asked and fault.kind == FAILED else fault


def failure(event: WorkerExited, fault: FaultReport) -> Report:
    """Tells people of a worker's end that nobody wanted."""
    kind = WorkerKilled if fault.kind == KILLED else WorkerFailed
    ended = kind(
        fault.rank,
        exit_code=event.code,
        local_rank=event.local_rank,
        reason=fault.reason,
        echo=fault.consequence,
        by_agent=fault.signature == BY_AGENT,
    )
    return Report(ended)


def all_ended(state: State, actions: list[Action]) -> Step:
    """The last worker of the round has ended on this node."""
    last = state.round
    assert last is not None
    if state.then is Then.END:
        return end(state, actions)
    well = not state.faults and not state.drained and not state.told_to_stop
    if well and state.then is Then.REJOIN:
        return Step(
            replace(state, phase=Phase.DONE), (*actions, SayDone(last.number)), "ended well"
        )
    fault = root_cause(state.faults) or state.why or planned(state, "the membership changes")
    if state.then is Then.LEAVE and not state.faults:
        fault = replace(fault, kind=ASKED)
    actions.append(Report(RoundLeft(last.number, fault.reason)))
    if state.then is Then.NEW_LIFE:
        state = replace(state, phase=Phase.WAITING, then=Then.REJOIN)
        if not state.server:
            return Step(replace(state, phase=Phase.STARTING), tuple(actions))
        if state.in_place:
            return boot(replace(state, joined=False), actions)
        return Step(state, (*actions, SayJoin()), "a new life")
    if state.then is Then.LEAVE:
        actions.append(SayLeft(last.number, fault, stays=False))
        return end(state, actions)
    state = replace(state, phase=Phase.WAITING)
    if state.in_place:
        return boot(
            state, (*actions, SayLeft(last.number, fault, stays=True, workers=state.available))
        )
    actions.append(SayLeft(last.number, fault, stays=True))
    return Step(state, tuple(actions), fault.reason)


def passed_on(signum: int) -> tuple[Action, ...]:
    """What a script hears of a signal when its workers save and leave by themselves.

    Not of those two: the one is how they are asked to leave without an agent, and Python makes an
    exception of the other where the script says nothing about it, which would end them at once.
    """
    return () if signum in (signal.SIGTERM, signal.SIGINT) else (PassOn(signum),)


def last_words(text: str, name: str, saved: int, accompanied: bool) -> str:
    """What a node says that has left because it was asked to.

    Args:
        text: that it has.
        name: of the node.
        saved: the step that its workers have saved; -1: none.
        accompanied: others are known that go on.
    """
    told = f"{name} {text}; step {saved} is saved" if saved >= 0 else f"{name} {text}"
    return f"{told}; other nodes may go on" if accompanied else told


def reached_before(left_at: int, budget: Budget) -> int:
    """How far the job was before a round, for counting the steps that it makes again.

    The best of all rounds is not that: what one of them has lost is not lost once more by each that
    follows it before the same step.

    Args:
        left_at: the step at which this node left the round before; -1: it was in none with steps.
        budget: of the round, for a node that has not been there.
    """
    return left_at if left_at >= 0 else budget.best_step


def planned(state: State, reason: str) -> FaultReport:
    """The report of a node that leaves the round because it was told to."""
    return FaultReport(state.round.number if state.round else 0, PLANNED, reason)


def stop_all(
    state: State,
    grace: float,
    reason: str,
    actions: Iterable[Action] = (),
    signum: int = signal.SIGTERM,
) -> Step:
    """Ends all workers, after these actions; without any worker, goes on at once."""
    state = replace(state, phase=Phase.STOPPING, told_to_stop=True, draining=False)
    if not state.alive:
        return all_ended(state, [*actions])
    return Step(
        state, (*actions, StopWorkers(grace, signum=signum), SetAlarm(float("inf"))), reason
    )


def leave_with(state: State, finish: Finish) -> Step:
    """Ends this agent's life, its workers first."""
    state = replace(state, then=Then.END, finish=finish)
    if state.alive and state.phase in (Phase.RUNNING, Phase.STOPPING):
        return stop_all(state, state.settings.timeouts.broken_grace, finish.message)
    return end(state, [])


def without_room(state: State, fault: FaultReport) -> State:
    """Has this node leave the job after its round: its machine has refused a worker for too long.

    The others go on without it if they are enough; here, nothing would be better the next time.
    """
    if state.then not in (Then.REJOIN, Then.NEW_LIFE):
        return state
    return replace(state, then=Then.LEAVE, finish=Finish(EXIT_FAILED, fault.reason))


def end(state: State, actions: list[Action]) -> Step:
    """Ends this agent's life, now that no worker of it is in a round."""
    finish = state.finish or Finish(EXIT_LEFT, "left")
    state = replace(state, phase=Phase.ENDED)
    return Step(state, (*actions, SayGoodbye(), finish), finish.message)
