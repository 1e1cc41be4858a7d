"""The life of an agent whose workers keep their process from round to round: pure.

``lifecycle`` hands every event here first once the script has come to ``elastic.run``::

              ready                 Enter                   returned
    BOOT ───────────────▶ READY ───────────────▶ IN ─────────────────▶ OUT
      ▲                     ▲                     │ interrupt, change,
      │ it ended            └─────────────────────┘ error of a peer

A fault costs the survivors no process: they take their groups apart, say so, and enter the next
round. A node asks in with the workers that are ready, and says so again when a replacement is: so
the others never wait for a start. As in ``lifecycle``, a round is left only when no worker of this
node can take part in it any more.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.agent.lifecycle.departure import asked, dismiss, drained, hold, still_needed
from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    Asked,
    AskWorkers,
    ChangeWorkers,
    EnterWorkers,
    Event,
    Finish,
    InterruptWorkers,
    KillWorkers,
    LookForMembers,
    NoNews,
    NoProgress,
    Phase,
    Report,
    SayAvailable,
    SayDone,
    SayInPlace,
    SayJoin,
    SayLeft,
    Seat,
    Seated,
    SetAlarm,
    State,
    Step,
    Then,
    WorkerExited,
    WorkerHeard,
    WorkerLeft,
    WorkerReady,
    WorkerReturned,
)
from elastic_runtime.agent.lifecycle.stuck_workers import (
    SILENCE,
    hung_at,
    no_news,
    overdue,
    who_is_stuck,
)
from elastic_runtime.agent.lifecycle.termination import (
    as_asked,
    begun,
    boot,
    failure,
    leave_with,
    moved,
    stop_all,
)
from elastic_runtime.errors import EXIT_FAILED
from elastic_runtime.events.node_events import NodeCutOff, NodeExcluded
from elastic_runtime.events.round_events import FaultRetry, RoundLeft, RoundWaits
from elastic_runtime.events.worker_events import WorkerHangs, WorkerStuck
from elastic_runtime.protocol.messages import HANG
from elastic_runtime.protocol.records import (
    ASKED,
    CUT_OFF,
    FAILED,
    HANGS,
    LOST,
    NO_ROOM,
    PLANNED,
    START,
    FaultReport,
    listed,
)
from elastic_runtime.rendezvous.core.formation.failure_budget import root_cause
from elastic_runtime.rendezvous.core.notices import (
    Excluded,
    Prepare,
    Sealed,
    Surveyed,
    Switch,
    Waiting,
)

_NEVER = float("inf")
# Workers that end before they come to elastic.run are started again so often.
_MOST_BOOTS = 3
# What a worker's channel thread needs to answer, in seconds.
_ANSWER = 0.5
# After this time an answer says nothing about where the worker is now.
_OLD_ANSWER = 5.0


def step(state: State, event: Event, now: float) -> Step | None:
    """Decides what follows from an event, if it is a matter of recovering in place.

    Args:
        state: the present state.
        event: what has happened.
        now: seconds on the monotonic clock.

    Returns:
        None: ``lifecycle`` is to decide.
    """
    if isinstance(event, Prepare):
        return _prepare(state)
    if isinstance(event, WorkerReady):
        return _ready(state, event.local_rank)
    if not state.in_place or state.phase in (Phase.STOPPING, Phase.ENDED):
        return None
    match event:
        case Sealed():
            return _sealed(state, event)
        case WorkerLeft():
            return _left(state, event, now)
        case WorkerReturned():
            return _returned(state, event, now)
        case WorkerHeard(local_rank):
            return Step(replace(state, heard={**state.heard, local_rank: event}))
        case WorkerExited():
            return _exited(state, event, now)
        case Switch():
            return _switch(state, event, now)
        case Excluded(reason):
            return _excluded(state, reason, now)
        case NoProgress():
            return _no_progress(state, event, now)
        case NoNews():
            return no_news(state, event, now)
        case Surveyed():
            return _surveyed(state, event, now)
        case Asked():
            return asked(state, event, now)
        case Alarm() if state.phase is Phase.WAITING and state.asked:
            return hold(state, [], event, now)
        case Waiting(outside=True) if state.phase is Phase.WAITING and state.asked:
            return dismiss(state, [], None, "the others go on without this node", now)
        case Alarm():
            return _alarm(state, now)
    return None


# ---------------------------------------------------------------- getting ready


def _prepare(state: State) -> Step:
    """The job is in place, and this node is new to it."""
    if state.phase is not Phase.WAITING or state.alive:
        return Step(state)
    return boot(replace(state, in_place=True, joined=True))


def _ready(state: State, local_rank: int) -> Step:
    if local_rank not in state.alive or state.phase in (Phase.STOPPING, Phase.ENDED):
        return Step(state)
    actions: list[Action] = []
    if not state.in_place:
        # The first round: its workers were started as those of any script.
        state = replace(
            state, in_place=True, joined=True, seats=dict.fromkeys(state.alive, Seated())
        )
        actions.append(SayInPlace(hosts=state.group_rank == 0))
    state = replace(moved(state, {local_rank: Seat.READY}), boots=0)
    if state.phase is Phase.DONE:
        return Step(state, tuple(actions), "the others have ended already")
    if state.phase is Phase.RUNNING and not state.seated(Seat.IN, Seat.OUT):
        if state.seated(Seat.BOOT):
            return Step(state, tuple(actions), "waiting for the other workers of this node")
        return _enter(state, state.seated(Seat.READY), actions)
    if state.joined:
        return Step(state, (*actions, SayAvailable(state.available)), "a worker is ready")
    if state.seated(Seat.BOOT):
        return Step(state, tuple(actions), "waiting for the other workers of this node")
    return Step(replace(state, joined=True), (*actions, SayJoin(state.available)), "all are ready")


def _sealed(state: State, event: Sealed) -> Step:
    if state.phase is not Phase.WAITING:
        return Step(state, (), "not waiting for a round")
    last = event.round
    before = state.round.budget.failures if state.round else 0
    wanted = last.member(event.group_rank).workers
    chosen = state.seated(Seat.READY)[:wanted]
    state = replace(
        state,
        then=Then.LEAVE if state.asked else Then.REJOIN,
        round=last,
        group_rank=event.group_rank,
        faults=(),
        why=None,
        counted_on=False,
        released=False,
        drained=False,
        told_to_stop=False,
        draining=False,
        interrupted_at=None,
        asking=False,
    )
    if len(chosen) < wanted:
        fault = FaultReport(last.number, START, "a worker ended before the round began")
        fault = replace(fault, consequence=True)
        left = SayLeft(last.number, fault, stays=True, workers=state.available)
        return Step(state, (left,), fault.reason)
    actions: list[Action] = []
    if last.budget.failures > before:
        retry = FaultRetry(last.reason, last.budget.failures, state.settings.max_restarts)
        actions.append(Report(retry))
    actions.append(begun(last, event.group_rank))
    entered = _enter(state, chosen, actions)
    if state.asked is None:
        return entered
    due = state.asked.at + state.settings.timeouts.grace
    state, drains = drained(entered.state, due)
    return Step(state, (*entered.actions, *drains), last.reason)


def _enter(state: State, chosen: tuple[int, ...], actions: list[Action]) -> Step:
    last = state.round
    assert last is not None
    state = replace(moved(state, dict.fromkeys(chosen, Seat.IN), last.number), phase=Phase.RUNNING)
    actions.append(EnterWorkers(last, state.group_rank, chosen))
    return Step(state, tuple(actions), last.reason)


# ---------------------------------------------------------------- leaving a round


def _left(state: State, event: WorkerLeft, now: float) -> Step:
    last = state.round
    if last is None or event.round != last.number or event.local_rank not in state.seated(Seat.IN):
        return Step(state)
    state = moved(state, {event.local_rank: Seat.READY})
    if event.planned:
        counted_on, released = not event.released, event.released
        state = replace(
            state,
            counted_on=state.counted_on or counted_on,
            released=state.released or released,
        )
    if event.planned or state.interrupted_at is not None:
        return _unless_in(state, [], now)
    fault = FaultReport(
        last.number,
        FAILED,
        event.reason,
        rank=last.first_worker(state.group_rank),
        step=event.step,
        consequence=True,
    )
    state = replace(state, faults=(*state.faults, fault))
    return _interrupt(state, event.reason, [], now)


def _returned(state: State, event: WorkerReturned, now: float) -> Step:
    """A worker is through, perhaps of a round that others had broken by then: they wait for this
    node to leave it, and will not say so again."""
    if state.round is None or event.round != state.round.number:
        return Step(state)
    state = moved(state, {event.local_rank: Seat.OUT})
    return Step(state) if state.interrupted_at is None else _unless_in(state, [], now)


def _interrupt(state: State, reason: str, actions: list[Action], now: float) -> Step:
    """Has all workers leave the round at once."""
    last = state.round
    assert last is not None
    inside = state.seated(Seat.IN)
    if inside:
        if state.interrupted_at is None:
            state = replace(state, interrupted_at=now, asking=False, overdue=0.0)
            actions.append(SetAlarm(now + state.settings.stuck))
        actions.append(InterruptWorkers(last.number, inside, reason))
    return _unless_in(state, actions, now)


def _unless_in(state: State, actions: list[Action], now: float) -> Step:
    """Leaves the round if no worker of this node is in it any more."""
    last = state.round
    assert last is not None
    if state.seated(Seat.IN):
        return Step(state, tuple(actions), "workers are leaving the round")
    if state.seated(Seat.OUT):  # these are past elastic.run: they start anew
        return stop_all(state, state.settings.timeouts.broken_grace, "the round is over", actions)
    fault = root_cause(state.faults) or state.why
    fault = fault or FaultReport(last.number, PLANNED, "the membership changes")
    if state.then is Then.LEAVE and not state.faults:
        fault = replace(fault, kind=ASKED)
    actions.append(Report(RoundLeft(last.number, fault.reason)))
    actions.append(SetAlarm(_NEVER))
    broken = state.interrupted_at is not None or bool(state.faults)
    state = replace(state, phase=Phase.WAITING, faults=(), why=None, interrupted_at=None)
    if state.then is Then.NEW_LIFE:
        return _new_life(replace(state, then=Then.REJOIN), actions)
    holds = still_needed(state, broken=broken)
    stays = state.then is not Then.LEAVE or holds
    actions.append(SayLeft(last.number, fault, stays=stays, workers=state.available))
    if holds:
        return hold(replace(state, holds_from=now), actions, Alarm(), now)
    if stays:
        return boot(state, actions)
    return dismiss(state, actions, None, fault.reason, now)


def _new_life(state: State, actions: list[Action]) -> Step:
    """Asks in again, as a node that nobody knows, with what is ready."""
    if state.available:
        actions.append(SayJoin(state.available))
    return boot(replace(state, joined=bool(state.available)), actions)


def _switch(state: State, event: Switch, now: float) -> Step | None:
    last = state.round
    if last is None or event.round != last.number:
        return Step(state)
    why = FaultReport(event.round, PLANNED, event.reason)
    state = replace(state, why=state.why or why)
    if state.phase is Phase.DONE or state.seated(Seat.OUT):
        return None  # these are past elastic.run: they start anew
    if state.phase is not Phase.RUNNING:
        return Step(state)
    if event.broken or not state.seated(Seat.IN):
        return _interrupt(state, event.reason, [], now)
    if state.interrupted_at is not None:
        return Step(state)
    actions = (
        ChangeWorkers(last.number, event.reason),
        SetAlarm(now + state.settings.timeouts.grace),
    )
    return Step(state, actions, event.reason)


def _excluded(state: State, reason: str, now: float) -> Step:
    report = Report(NodeExcluded(reason))
    if state.phase is Phase.RUNNING and not state.seated(Seat.OUT):
        then = state.then if state.then is not Then.REJOIN else Then.NEW_LIFE
        return _interrupt(replace(state, then=then), reason, [report], now)
    if state.phase is Phase.WAITING and state.asked:
        return dismiss(state, [report], None, reason, now)
    if state.phase is Phase.WAITING:
        return _new_life(state, [report])
    return Step(state, (report,), reason)


# ---------------------------------------------------------------- ends


def _exited(state: State, event: WorkerExited, now: float) -> Step:
    seated = state.seats.get(event.local_rank)
    if seated is None or event.local_rank not in state.alive:
        return Step(state)
    last = state.round
    seats = {rank: other for rank, other in state.seats.items() if rank != event.local_rank}
    state = replace(state, alive=state.alive - {event.local_rank}, seats=seats)
    if seated.seat is Seat.OUT and event.code == 0:
        return _finished(state)
    number = last.number if last else 0
    text = f"a worker ended with exit code {event.code} in the middle of its work"
    # The process was started for an older round; its end breaks this one.
    fault = replace(event.fault or FaultReport(number, FAILED, text), round=number)
    fault = as_asked(state, fault)
    actions: list[Action] = [failure(event, fault)]
    if seated.seat is Seat.OUT:
        return _undone(state, fault, actions)
    if seated.seat is Seat.BOOT:
        return _boot_failed(state, fault, actions, now)
    if seated.seat is Seat.READY:
        return boot(state, (*actions, SayAvailable(state.available)))
    state = replace(state, faults=(*state.faults, fault))
    step = _interrupt(state, fault.reason, actions, now)
    return boot(step.state, step.actions) if step.state.phase is Phase.RUNNING else step


def _finished(state: State) -> Step:
    last = state.round
    assert last is not None
    if state.seated(Seat.IN, Seat.OUT):
        return Step(state, (), "a worker has ended well")
    # A replacement that has come too late to take part ends with the agent.
    state = replace(state, phase=Phase.DONE, joined=False)
    return Step(state, (SayDone(last.number),), "ended well")


def _undone(state: State, fault: FaultReport, actions: list[Action]) -> Step:
    """A worker failed after ``train`` had returned everywhere: what follows it starts anew."""
    state = replace(state, faults=(*state.faults, fault))
    return stop_all(state, state.settings.timeouts.broken_grace, fault.reason, actions)


def _boot_failed(state: State, fault: FaultReport, actions: list[Action], now: float) -> Step:
    no_room = fault.signature == NO_ROOM
    if no_room and (state.phase is Phase.DONE or state.seated(Seat.OUT)):
        return Step(state, tuple(actions), "the others are through without it")
    if fault.signature != WITH_SERVER and not no_room:
        state = replace(state, boots=state.boots + 1)
    if state.phase is Phase.RUNNING and not state.seated(Seat.IN):
        # The first round, in which a start is part of the round.
        return _interrupt(replace(state, faults=(*state.faults, fault)), fault.reason, actions, now)
    if no_room and not state.available:
        left = leave_with(state, Finish(EXIT_FAILED, fault.reason))
        return replace(left, actions=(*actions, *left.actions))
    if state.boots < _MOST_BOOTS:
        return boot(state, actions)
    text = f"a replacement worker fails each time before it comes to elastic.run: {fault.reason}"
    left = leave_with(state, Finish(EXIT_FAILED, text))
    return replace(left, actions=(*actions, *left.actions))


# ---------------------------------------------------------------- workers that are stuck


def _alarm(state: State, now: float) -> Step | None:
    inside = state.seated(Seat.IN)
    last = state.round
    if state.phase is not Phase.RUNNING or last is None or not inside:
        return None
    if state.interrupted_at is None:
        # They did not come to a common step in time.
        return _interrupt(state, "the ranks did not agree on a step in time", [], now)
    if not state.asking:
        state = replace(state, asking=True, asked_at=now, heard={})
        return Step(state, (AskWorkers(inside), SetAlarm(now + _ANSWER)), "who is stuck?")
    if now < state.asked_at + SILENCE and not state.heard.keys() >= {*inside}:
        return Step(state, (SetAlarm(now + _ANSWER),), "some have not answered yet")
    stuck = who_is_stuck(state, inside, now)
    actions: list[Action] = []
    if stuck:
        why = "; ".join(dict.fromkeys(stuck.values()))
        actions.append(Report(WorkerStuck(why, list(stuck))))
        actions.append(KillWorkers(tuple(stuck), f"did not leave the broken round: {why}"))
    actions.append(SetAlarm(now + state.settings.stuck))
    return Step(replace(state, asking=False), tuple(actions), "workers that do not leave the round")


def _no_progress(state: State, event: NoProgress, now: float) -> Step:
    """Finds out which worker holds up all others; the agents of those find theirs innocent."""
    inside, last = state.seated(Seat.IN), state.round
    if state.phase is not Phase.RUNNING or not inside or last is None:
        return Step(state)
    if state.interrupted_at is not None:
        return overdue(state, event, now)
    said = {rank: state.heard.get(rank) for rank in inside}
    recently = now < state.asked_at + (_ANSWER if all(said.values()) else SILENCE)
    old = state.asked_at < max(now - event.seconds, now - _OLD_ANSWER)
    if not state.asking or old:
        if recently or now < state.busy_at + event.limit:
            return Step(state)
        state = replace(state, asking=True, asked_at=now, heard={})
        return Step(state, (AskWorkers(inside), LookForMembers(last.number)), "no progress")
    alone = last.size == 1
    if recently or (not alone and state.surveyed_at < state.asked_at):
        return Step(state)  # who cannot reach the others is no worse than they are
    state = replace(state, asking=False)
    guilty = tuple(
        rank for rank, heard in said.items() if not (heard and (heard.collective or heard.busy))
    )
    if guilty:
        where = "; ".join(dict.fromkeys(hung_at(said.get(rank)) for rank in guilty))
        why = f"{where}: no step for {event.seconds:.0f} s (--hang-timeout)"
        report = Report(WorkerHangs(why, list(guilty)))
        return Step(state, (report, KillWorkers(guilty, why)), why)
    # As here, a step counts from the end of what somebody is busy with.
    seconds = min(event.seconds, now - state.busy_at)
    if seconds < 2 * event.limit or any(heard and heard.busy for heard in said.values()):
        return Step(state, (), "all workers here wait for others")
    reason = f"no step for {event.seconds:.0f} s: {HANG} (--hang-timeout)"
    fault = FaultReport(last.number, FAILED, reason, signature=HANGS)
    state = replace(state, faults=(*state.faults, fault))
    return _interrupt(state, reason, [Report(WorkerHangs(reason))], now)


def _surveyed(state: State, event: Surveyed, now: float) -> Step:
    """Nobody can train with members that are out of reach, and no worker is to blame for it."""
    last = state.round
    if state.phase is not Phase.RUNNING or last is None or event.round != last.number:
        return Step(state)
    if not event.missed:
        state = replace(state, surveyed_at=now, busy_at=now if event.busy else state.busy_at)
        if not event.busy or not state.asking:
            return Step(state, (), "all members are in reach")
        report = Report(RoundWaits(list(event.busy)))
        return Step(state, (report,), "a worker of another node is busy")
    if state.interrupted_at is not None or not state.seated(Seat.IN):
        return Step(state)
    name = last.member(state.group_rank).name
    reason = f"{name} does not reach {listed(event.missed)}"
    fault = FaultReport(last.number, LOST, reason, signature=CUT_OFF, consequence=True)
    state = replace(state, asking=False, faults=(*state.faults, fault))
    report = Report(NodeCutOff(reason, list(event.missed)))
    return _interrupt(state, reason, [report], now)
