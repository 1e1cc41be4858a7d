"""The handlers of ``lifecycle_step`` for workers that keep their process: pure.

::

               ready                 EnterRound               returned
    STARTING ────────────▶ READY ───────────────▶ IN_ROUND ───────────▶ RETURNED
      ▲                      ▲                     │ interrupt, change,
      │ it ended             └─────────────────────┘ error of a peer

A fault costs the survivors no process: they take their process groups apart, report that, and enter
the next round. A node joins with the workers that are ready, and registers again when a replacement
is ready: so the others never wait for a process to start. As in ``restart_lifecycle``, a round is
left only when no worker of this node can take part in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle import hang_detection, restart_lifecycle
from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER
from elastic_runtime.agent.lifecycle.in_place_leaving import (
    announce_leaving,
    dismiss_workers,
    wait_to_leave,
)
from elastic_runtime.agent.lifecycle.in_place_round import (
    enter_round,
    in_phase,
    interrupt_round,
    join_as_new,
    leave_if_empty,
)
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    InPlace,
    InPlaceWorker,
    Phase,
    RoundFacts,
    Step,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    Finish,
    HostStore,
    SetAlarm,
    TellPeople,
    TellRendezvous,
    TellWorkers,
    WorkerExited,
    WorkerSaid,
)
from elastic_runtime.agent.lifecycle.termination import (
    finish_with,
    free_if_leaving,
    report_exit,
    report_round,
    start_missing,
    stop_workers,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.errors import EXIT_FAILED
from elastic_runtime.events.node_events import NodeExcluded
from elastic_runtime.limits import MAX_START_FAILURES
from elastic_runtime.protocol.messages import Change, Left, Returned, Trained
from elastic_runtime.protocol.records import FAILED, LACKS_RESOURCES, PLANNED, START, FaultReport
from elastic_runtime.rendezvous.core import membership_events

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.notices import Excluded, Prepare, Sealed, Switch, Waiting


# ---------------------------------------------------------------- getting ready


def prepare(state: AgentState, event: Prepare, now: float) -> Step:
    """The job is in place, and this node is new to it."""
    if state.phase is not Phase.WAITING or state.alive:
        return Step(state)
    in_place = replace(state.in_place or InPlace(), registered=True)
    return start_missing(replace(state, in_place=in_place))


def worker_ready(state: AgentState, event: WorkerSaid, now: float) -> Step:
    """A worker's script has come to ``elastic.run``."""
    local_rank, last = event.local_rank, state.round
    if local_rank not in state.alive or state.phase in (Phase.STOPPING, Phase.ENDED):
        return Step(state)
    actions: list[Action] = []
    if state.in_place is None:
        # The first round: its workers were started as those of any script.
        workers = dict.fromkeys(state.alive, InPlaceWorker())
        state = replace(state, in_place=InPlace(workers))
        port = last.store_port if last and state.group_rank == 0 else 0
        actions += [HostStore(port), TellRendezvous(membership_events.RecoversInPlace())]
    state = in_phase(state, (local_rank,), WorkerPhase.READY)
    in_place = replace(state.require_in_place(), start_failures=0)
    state = replace(state, in_place=in_place)
    starting = in_place.ranks_in(WorkerPhase.STARTING)
    if state.phase is Phase.DONE:
        return Step(state, tuple(actions), "the others have ended already")
    entered = in_place.ranks_in(WorkerPhase.IN_ROUND, WorkerPhase.RETURNED)
    if state.phase is Phase.RUNNING and not entered and not starting:
        return enter_round(state, in_place.ranks_in(WorkerPhase.READY)).preceded_by(*actions)
    if in_place.registered and (entered or state.phase is not Phase.RUNNING):
        return Step(state, (*actions, say_available(state)), "a worker is ready")
    if starting:
        return Step(state, tuple(actions), "waiting for the other workers of this node")
    state = replace(state, in_place=replace(in_place, registered=True))
    join = TellRendezvous(membership_events.Join(workers=state.available))
    return Step(state, (*actions, join), "all are ready")


def say_available(state: AgentState) -> TellRendezvous:
    """How many workers can take part in a round now."""
    return TellRendezvous(membership_events.WorkersAvailable(state.available))


def sealed(state: AgentState, event: Sealed, now: float) -> Step:
    """This node is in a new round: the workers that are ready enter it."""
    if state.phase is not Phase.WAITING:
        return Step(state, (), "not waiting for a round")
    last, group_rank = event.round, event.group_rank
    wanted = last.member(group_rank).workers
    chosen = state.ranks_in(WorkerPhase.READY)[:wanted]
    reports = report_round(state, last, group_rank)
    in_place = state.require_in_place()
    state = replace(
        state,
        after_round=AfterRound.LEAVE if state.leave_request else AfterRound.REJOIN,
        round=last,
        group_rank=group_rank,
        facts=RoundFacts(),
        in_place=replace(
            in_place,
            promised_to_stay=False,
            leaving_known=False,
            interrupted_at=None,
            inquiry=replace(in_place.inquiry, asking=False),
        ),
    )
    if len(chosen) < wanted:
        fault = FaultReport(last.number, START, "a worker ended before the round began")
        fault = replace(fault, consequence=True)
        left = membership_events.LeftRound(last.number, fault, stays=True, workers=state.available)
        return Step(state, (TellRendezvous(left),), fault.reason)
    entered = enter_round(state, chosen).preceded_by(*reports)
    if state.leave_request is None:
        return entered
    due = state.leave_request.at + state.settings.timeouts.grace
    state, announced = announce_leaving(entered.state, due)
    return Step(state, (*entered.actions, *announced), last.reason)


# ---------------------------------------------------------------- leaving a round


def worker_left(state: AgentState, event: WorkerSaid, now: float) -> Step:
    """A worker has taken its part of the round apart, and waits for the next one."""
    last, left = state.round, event.message
    assert isinstance(left, Left)
    if last is None or left.round != last.number:
        return Step(state)
    if event.local_rank not in state.ranks_in(WorkerPhase.IN_ROUND):
        return Step(state)
    state = in_phase(state, (event.local_rank,), WorkerPhase.READY)
    in_place = state.require_in_place()
    if left.planned:
        in_place = replace(
            in_place,
            promised_to_stay=in_place.promised_to_stay or not left.released,
            leaving_known=in_place.leaving_known or left.released,
        )
        state = replace(state, in_place=in_place)
    if left.planned or in_place.interrupted_at is not None:
        return leave_if_empty(state, now)
    fault = FaultReport(
        last.number,
        FAILED,
        left.reason,
        rank=last.first_worker(state.group_rank),
        step=left.step,
        consequence=True,
    )
    return interrupt_round(state.with_fault(fault), left.reason, now)


def worker_trained(state: AgentState, event: WorkerSaid, now: float) -> Step:
    """``train`` has returned on all ranks of the round: nobody joins from now on."""
    last, in_place = state.round, state.require_in_place()
    assert isinstance(event.message, Trained)
    if last is None or event.message.round != last.number or in_place.trained == last.number:
        return Step(state)
    if in_place.interrupted_at is not None:
        return Step(state)
    state = replace(state, in_place=replace(in_place, trained=last.number))
    actions: tuple[Action, ...] = (TellRendezvous(membership_events.TrainReturned(last.number)),)
    if state.leave_request is None:
        actions = (*actions, SetAlarm(NEVER))  # there is no step any more to agree on
    return Step(state, actions)


def worker_returned(state: AgentState, event: WorkerSaid, now: float) -> Step:
    """``elastic.run`` is over on this worker, as it is about to be on all ranks of the round.

    Perhaps others had broken the round by then: they wait for this node to leave it, and will not
    report it again.
    """
    assert isinstance(event.message, Returned)
    if state.round is None or event.message.round != state.round.number:
        return Step(state)
    state = in_phase(state, (event.local_rank,), WorkerPhase.RETURNED)
    if state.require_in_place().interrupted_at is None:
        return Step(state)
    return leave_if_empty(state, now)


def switch(state: AgentState, event: Switch, now: float) -> Step:
    """The round is to be left: at once if it is broken, at a common step otherwise."""
    last = state.round
    if last is None or event.round != last.number:
        return Step(state)
    if event.grows and not event.broken and state.require_in_place().trained == last.number:
        return Step(state, (), "train has returned on all ranks: too late to join")
    if state.phase is Phase.DONE or state.ranks_in(WorkerPhase.RETURNED):
        return restart_lifecycle.switch(state, event, now)  # past elastic.run, they start again
    state = state.with_leave_reason(FaultReport(event.round, PLANNED, event.reason))
    if state.phase is not Phase.RUNNING:
        return Step(state)
    if event.broken or not state.ranks_in(WorkerPhase.IN_ROUND):
        return interrupt_round(state, event.reason, now)
    if state.require_in_place().interrupted_at is not None:
        return Step(state)
    change = TellWorkers(Change(last.number, event.reason, goes=False, grows=event.grows))
    return Step(state, (change, SetAlarm(now + state.settings.timeouts.grace)), event.reason)


def alarm(state: AgentState, event: Alarm, now: float) -> Step:
    """Time is over: to wait for a round to leave in, to agree on a step, or to leave a round."""
    if state.phase is Phase.WAITING and state.leave_request:
        return wait_to_leave(state, event, now)
    inside = state.ranks_in(WorkerPhase.IN_ROUND)
    if state.phase is not Phase.RUNNING or state.round is None or not inside:
        return restart_lifecycle.alarm(state, event, now)
    if state.require_in_place().interrupted_at is None:
        return interrupt_round(state, "the ranks did not agree on a step in time", now)
    return hang_detection.look_for_stuck_workers(state, inside, now)


def waiting(state: AgentState, event: Waiting, now: float) -> Step:
    """This node waits for a round; if it only waits to leave, perhaps it is not needed."""
    if event.outside and state.phase is Phase.WAITING and state.leave_request:
        return dismiss_workers(state, None, "the others continue without this node", now)
    return restart_lifecycle.waiting(state, event, now)


def excluded(state: AgentState, event: Excluded, now: float) -> Step:
    """The job continued without this node: its workers leave the round, and it joins again."""
    report = TellPeople(NodeExcluded(event.reason))
    if state.phase is Phase.RUNNING and not state.ranks_in(WorkerPhase.RETURNED):
        state = replace(state, after_round=restart_lifecycle.new_unless_leaving(state))
        return interrupt_round(state, event.reason, now).preceded_by(report)
    if state.phase is Phase.WAITING and state.leave_request:
        return dismiss_workers(state, None, event.reason, now).preceded_by(report)
    if state.phase is Phase.DONE and state.after_round is AfterRound.REJOIN:
        state = replace(state, phase=Phase.WAITING)
    if state.phase is Phase.WAITING:
        return join_as_new(state).preceded_by(report)
    return restart_lifecycle.excluded(state, event, now)


# ---------------------------------------------------------------- ends of workers


def worker_exited(state: AgentState, event: WorkerExited, now: float) -> Step:
    """A worker has ended: what that means depends on where it was."""
    in_place, last = state.require_in_place(), state.round
    worker = in_place.workers.get(event.local_rank)
    if worker is None or event.local_rank not in state.alive:
        return Step(state)
    state = state.without_worker(event.local_rank)
    if worker.phase is WorkerPhase.RETURNED and event.code == 0:
        return _ended_well(state)
    number = last.number if last else 0
    text = f"a worker ended with exit code {event.code} in the middle of its work"
    # The process was started for an older round; its end breaks this one.
    fault = replace(event.fault or FaultReport(number, FAILED, text), round=number)
    fault = free_if_leaving(state, fault)
    return _ended_unasked(state, worker.phase, fault, now).preceded_by(report_exit(event, fault))


def _ended_unasked(state: AgentState, phase: WorkerPhase, fault: FaultReport, now: float) -> Step:
    """What follows from the unwanted end of a worker that was in this phase."""
    match phase:
        case WorkerPhase.RETURNED:  # ``train`` is over everywhere: what follows it starts again
            grace = state.settings.timeouts.broken_grace
            return stop_workers(state.with_fault(fault), grace, fault.reason)
        case WorkerPhase.STARTING:
            return _start_failed(state, fault, now)
        case WorkerPhase.READY:
            return start_missing(state).preceded_by(say_available(state))
    step = interrupt_round(state.with_fault(fault), fault.reason, now)
    if step.state.phase is not Phase.RUNNING:
        return step
    return start_missing(step.state).preceded_by(*step.actions)


def _ended_well(state: AgentState) -> Step:
    last, in_place = state.round, state.require_in_place()
    assert last is not None
    if in_place.ranks_in(WorkerPhase.IN_ROUND, WorkerPhase.RETURNED):
        return Step(state, (), "a worker has ended well")
    # A replacement that has come too late to take part ends with the agent.
    state = replace(state, phase=Phase.DONE, in_place=replace(in_place, registered=False))
    return Step(state, (TellRendezvous(membership_events.Done(last.number)),), "ended well")


def _start_failed(state: AgentState, fault: FaultReport, now: float) -> Step:
    """A worker has ended before it came to ``elastic.run``."""
    in_place, refused = state.require_in_place(), fault.signature == LACKS_RESOURCES
    if refused and (state.phase is Phase.DONE or in_place.ranks_in(WorkerPhase.RETURNED)):
        return Step(state, (), "the others have finished without it")
    if fault.signature != WITH_SERVER and not refused:
        in_place = replace(in_place, start_failures=in_place.start_failures + 1)
        state = replace(state, in_place=in_place)
    if state.phase is Phase.RUNNING and not in_place.ranks_in(WorkerPhase.IN_ROUND):
        # The first round, in which a start is part of the round.
        return interrupt_round(state.with_fault(fault), fault.reason, now)
    if refused and not state.available:
        message = fault.reason
    elif in_place.start_failures < MAX_START_FAILURES:
        return start_missing(state)
    else:
        failure = "a replacement worker fails each time before it comes to elastic.run"
        message = f"{failure}: {fault.reason}"
    return finish_with(state, Finish(EXIT_FAILED, message))
