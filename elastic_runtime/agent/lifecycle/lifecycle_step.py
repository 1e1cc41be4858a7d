"""The life of one agent: pure. ``step(state, event, now) → (state, actions, reason)``.

::

            ready            Sealed              all ended well
    STARTING ───▶ WAITING ───────▶ RUNNING ──────────────────▶ DONE
                     ▲                │  a worker fails, Switch,   │ Switch (others failed)
                     │                ▼  SIGTERM, Excluded, Ended  │
                     └──────────── STOPPING ◀──────────────────────┘
                                      │
                                      ▼ asked to leave, or the job has ended
                                    ENDED

A round is left only when every worker of it has ended here (``SayLeft``): that is what makes the
next round safe for the others.
"""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle import in_place_lifecycle
from elastic_runtime.agent.lifecycle.fault_classification import signal_name
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    AskDrain,
    Asked,
    Event,
    Finish,
    LifecycleSettings,
    Phase,
    Report,
    SayDrain,
    SayJoin,
    ServerDied,
    ServerReady,
    SetAlarm,
    StartServer,
    StartWorkers,
    State,
    Step,
    StopWorkers,
    Then,
    WorkerDrains,
    WorkerExited,
)
from elastic_runtime.agent.lifecycle.termination import (
    all_ended,
    as_asked,
    begun,
    boot,
    end,
    failure,
    leave_with,
    passed_on,
    stop_all,
    without_room,
)
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT, EXIT_STORE_UNREACHABLE, EXIT_USAGE
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.events.node_events import NodeExcluded, NodeLeaving
from elastic_runtime.events.round_events import FaultRetry
from elastic_runtime.events.store_events import (
    RecordBad,
    StoreForgot,
    StoreFound,
    StoreLost,
    StoreRefusesWrites,
)
from elastic_runtime.events.worker_events import ForkServerDied, WorkersCold
from elastic_runtime.protocol.records import ASKED, NO_ROOM, PLANNED, FaultReport
from elastic_runtime.rendezvous.core.notices import (
    BadRecord,
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Sealed,
    StoreState,
    StoreTimeout,
    StoreTrouble,
    Switch,
    Waiting,
)
from elastic_runtime.system.repeated_signals import Request

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import OutcomeRecord

# A server that dies more often in a row without ever being ready will not be ready next time.
_MOST_SERVER_DEATHS = 3


def begin(settings: LifecycleSettings) -> Step:
    """The first step of a life."""
    return Step(State(settings), (StartServer(),), "starting")


def step(state: State, event: Event, now: float) -> Step:
    """Decides what follows from an event.

    Args:
        state: the present state.
        event: what has happened.
        now: seconds on the monotonic clock.
    """
    if state.phase is Phase.ENDED:
        return Step(state)
    if isinstance(event, Asked) and state.asked and state.asked.repeated_by(event.signum, now):
        return Step(state, (), "the same request again")
    return in_place_lifecycle.step(state, event, now) or _step(state, event, now)


def _step(state: State, event: Event, now: float) -> Step:
    """The same, where no worker keeps its process, or none can."""
    match event:
        case ServerReady():
            return _server_ready(state, event, now)
        case ServerDied(why, refused):
            return _server_died(state, why, refused)
        case WorkerExited():
            return _worker_exited(state, event, now)
        case WorkerDrains(number, local_rank, can):
            if state.round is None or number != state.round.number:
                return Step(state)
            others = state.drains - {local_rank}
            return Step(replace(state, drains=others | {local_rank} if can else others))
        case Asked(signum):
            return _asked(state, signum, now)
        case Alarm():
            return _alarm(state)
        case Sealed():
            return _sealed(state, event)
        case Switch():
            return _switch(state, event, now)
        case Excluded(reason) | Fenced(reason):
            return _excluded(state, reason)
        case Ended(outcome):
            return _ended(state, outcome)
        case Conflict(message):
            return leave_with(state, Finish(EXIT_USAGE, message))
        case StoreState():
            return _store(state, event)
        case StoreTrouble(why, seconds):
            return Step(state, (Report(StoreRefusesWrites(why, seconds)),), why)
        case StoreTimeout(why):
            return leave_with(state, Finish(EXIT_STORE_UNREACHABLE, why))
        case Waiting() if state.asked:
            return Step(state)  # it waits for nothing any more
        case Waiting():
            return Step(state, (Report(JobWaiting(**asdict(event))),), event.reason)
        case BadRecord(key, why):
            return Step(state, (Report(RecordBad(key, why)),))
        case _:
            return Step(state)  # about workers in place that are not in place any more


# ---------------------------------------------------------------- starting


def _server_ready(state: State, event: ServerReady, now: float) -> Step:
    actions: list[Action] = []
    if event.cold:
        actions.append(Report(WorkersCold(event.cold)))
    state = replace(state, server=True, server_deaths=0)
    if state.phase is Phase.STARTING and state.in_place:
        return boot(replace(state, phase=Phase.WAITING, joined=False), actions)
    if state.phase is Phase.STARTING:
        state = replace(state, phase=Phase.WAITING)
        actions.append(SayJoin())
    return Step(state, tuple(actions), "the fork server is ready")


def _server_died(state: State, why: str, refused: bool) -> Step:
    """Starts the next one; the workers have ended before, each as a killed one, and whoever is to
    replace them starts when that one is ready."""
    state = replace(state, server=False, server_deaths=state.server_deaths + 1)
    if refused:
        return leave_with(state, Finish(EXIT_FAILED, f"the fork server cannot be started: {why}"))
    if state.server_deaths > _MOST_SERVER_DEATHS:
        text = f"the fork server dies each time that it is started ({why})"
        return leave_with(state, Finish(EXIT_FAILED, text))
    return Step(state, (Report(ForkServerDied(why)), StartServer()), why)


def _sealed(state: State, event: Sealed) -> Step:
    if state.phase is not Phase.WAITING:
        return Step(state, (), "not waiting for a round")
    before = state.round.budget.failures if state.round else 0
    state = replace(
        state,
        phase=Phase.RUNNING,
        then=Then.REJOIN,
        round=event.round,
        group_rank=event.group_rank,
        alive=frozenset(range(state.settings.workers)),
        drains=frozenset(),
        drained=False,
        draining=False,
        told_to_stop=False,
        faults=(),
        why=None,
    )
    last = event.round
    sealed = (begun(last, event.group_rank), StartWorkers(last, event.group_rank))
    if last.budget.failures > before:
        retry = FaultRetry(last.reason, last.budget.failures, state.settings.max_restarts)
        return Step(state, (Report(retry), *sealed), last.reason)
    return Step(state, sealed, last.reason)


# ---------------------------------------------------------------- running and stopping


def _worker_exited(state: State, event: WorkerExited, now: float) -> Step:
    if state.round is None or (event.round != state.round.number and not state.in_place):
        return Step(state)
    if event.local_rank not in state.alive:
        return Step(state)
    seats = {rank: seated for rank, seated in state.seats.items() if rank != event.local_rank}
    state = replace(
        state,
        seats=seats,
        alive=state.alive - {event.local_rank},
        drained=state.drained or event.drained,
    )
    actions: list[Action] = []
    ours = state.told_to_stop and event.code < 0
    if event.fault is not None and not event.drained and not ours:
        fault = as_asked(state, event.fault)
        state = replace(state, faults=(*state.faults, fault))
        if not state.told_to_stop:
            actions.append(failure(event, fault))
            state = replace(state, phase=Phase.STOPPING, told_to_stop=True)
            if fault.signature == NO_ROOM:
                state = without_room(state, fault)
            if state.alive:
                actions.append(StopWorkers(state.settings.timeouts.broken_grace))
                actions.append(SetAlarm(float("inf")))
    if state.alive:
        return Step(state, tuple(actions))
    return all_ended(state, actions)


def _switch(state: State, event: Switch, now: float) -> Step:
    if state.round is None or event.round != state.round.number:
        return Step(state)
    why = FaultReport(event.round, PLANNED, event.reason)
    state = replace(state, why=state.why or why)
    if state.phase is Phase.DONE:
        return all_ended(replace(state, phase=Phase.STOPPING, told_to_stop=True), [])
    if state.phase not in (Phase.RUNNING, Phase.STOPPING):
        return Step(state)
    if event.broken:
        if state.told_to_stop and not state.draining:
            return Step(state)
        return stop_all(state, state.settings.timeouts.broken_grace, event.reason)
    if state.told_to_stop or state.draining:
        return Step(state)
    return _drain(state, event.reason, now)


def _drain(state: State, reason: str, now: float, signum: int = signal.SIGTERM) -> Step:
    """Asks the workers to leave: at a step boundary if they can, else by a signal."""
    last = state.round
    if last is None or not state.alive <= state.drains or not state.alive:
        return stop_all(state, state.settings.timeouts.grace, reason, signum=signum)
    state = replace(state, draining=True)
    alarm = SetAlarm(now + state.settings.timeouts.grace)
    return Step(state, (*passed_on(signum), AskDrain(last.number, reason), alarm), reason)


def _alarm(state: State) -> Step:
    if state.draining:
        return stop_all(
            state, state.settings.timeouts.broken_grace, "the workers did not leave in time"
        )
    return Step(state)


# ---------------------------------------------------------------- leaving and ending


def _asked(state: State, signum: int, now: float) -> Step:
    if state.asked:
        state = replace(state, then=Then.END, finish=Finish(128 + signum, ""))
        if state.alive:
            state = replace(state, phase=Phase.STOPPING, told_to_stop=True)
            return Step(state, (StopWorkers(0.0),), "asked twice")
        return end(state, [])
    state = replace(state, asked=Request(signum, now))
    report = Report(NodeLeaving(f"asked to by {signal_name(signum)}"))
    alone = state.round is None or state.round.size == 1
    text = "stopped on request" if alone else "left on request"
    finish = Finish(EXIT_LEFT, text)
    state = replace(state, then=Then.LEAVE, finish=finish)
    match state.phase:
        case Phase.STARTING | Phase.WAITING | Phase.DONE:
            return end(state, [report])
        case Phase.STOPPING:
            return Step(state, (report, SayDrain()), "leaving after the stop")
    why = FaultReport(
        state.round.number if state.round else 0, ASKED, "the node was asked to leave"
    )
    drained = _drain(replace(state, why=why), "this node was asked to leave", now, signum)
    return Step(drained.state, (report, SayDrain(), *drained.actions), drained.reason)


def _excluded(state: State, reason: str) -> Step:
    report = Report(NodeExcluded(reason))
    if state.phase in (Phase.RUNNING, Phase.STOPPING) and state.alive:
        then = state.then if state.then is not Then.REJOIN else Then.NEW_LIFE
        stopped = stop_all(replace(state, then=then), state.settings.timeouts.broken_grace, reason)
        return Step(stopped.state, (report, *stopped.actions), reason)
    if state.phase is Phase.STARTING:
        return Step(state, (report,), reason)
    if state.then is Then.LEAVE:
        return end(state, [report])
    state = replace(state, phase=Phase.WAITING, then=Then.REJOIN)
    return Step(state, (report, SayJoin()), reason)


def _ended(state: State, outcome: OutcomeRecord) -> Step:
    finish = Finish(outcome.exit_code, "" if outcome.succeeded else outcome.reason, outcome)
    return leave_with(state, finish)


# ---------------------------------------------------------------- the store


def _store(state: State, event: StoreState) -> Step:
    """Tells people; how long a node waits for a lost store is decided in ``rendezvous.outage``."""
    if event.refused:
        return leave_with(state, Finish(EXIT_STORE_UNREACHABLE, event.why))
    if not event.up:
        return Step(state, (Report(StoreLost(event.why)),), event.why)
    news = (Report(StoreFound()),) if state.contacted else ()
    state = replace(state, contacted=True)
    if event.forgot:
        return Step(state, (Report(StoreForgot()),), "the store has lost its memory")
    return Step(state, news, "the store answers")
