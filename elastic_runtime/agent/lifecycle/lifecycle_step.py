"""The lifecycle of one agent: pure. ``step(state, event, now) → (state, actions, reason)``.

::

            ready            Sealed              all ended well
    STARTING ───▶ WAITING ───────▶ RUNNING ──────────────────▶ DONE
                     ▲                │  a worker fails, Switch,   │ Switch (others failed)
                     │                ▼  SIGTERM, Excluded, Ended  │
                     └──────────── STOPPING ◀──────────────────────┘
                                      │
                                      ▼ asked to leave, or the job has ended
                                    ENDED

A round is left only when no worker of this node is in it: that is what makes the next
round safe for the others. ``HANDLERS`` says which function handles an event; those for workers are
in ``restart_lifecycle`` and ``in_place_lifecycle``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from elastic_runtime.agent.lifecycle import (
    hang_detection,
    in_place_leaving,
    in_place_lifecycle,
    restart_lifecycle,
)
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AgentState,
    LifecycleSettings,
    Phase,
    Step,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    Finish,
    ForkServerExited,
    ForkServerReady,
    LeaveRequested,
    LifecycleEvent,
    ProgressSeen,
    StartForkServer,
    TellPeople,
    TellRendezvous,
    WorkerExited,
    WorkerSaid,
)
from elastic_runtime.agent.lifecycle.termination import finish_with, start_missing
from elastic_runtime.errors import EXIT_FAILED, EXIT_STORE_UNREACHABLE, EXIT_USAGE
from elastic_runtime.events.store_events import (
    RecordBad,
    StoreForgot,
    StoreFound,
    StoreLost,
    StoreRefusesWrites,
)
from elastic_runtime.events.worker_events import ForkServerDied, WorkersCold
from elastic_runtime.limits import MAX_FORK_SERVER_DEATHS
from elastic_runtime.protocol.messages import Heard, Hello, Left, Ready, Returned, Trained
from elastic_runtime.rendezvous.core import membership_events
from elastic_runtime.rendezvous.core.notices import (
    BadRecord,
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Prepare,
    Sealed,
    StoreState,
    StoreTimeout,
    StoreTrouble,
    Surveyed,
    Switch,
    Waiting,
)


def begin(settings: LifecycleSettings) -> Step:
    """The first step of an agent."""
    return Step(AgentState(settings), (StartForkServer(),), "starting")


def step(state: AgentState, event: LifecycleEvent, now: float) -> Step:
    """Decides what follows from an event.

    Args:
        state: the present state.
        event: what has happened.
        now: seconds on the monotonic clock.
    """
    if state.phase is Phase.ENDED:
        return Step(state)
    if isinstance(event, LeaveRequested) and _is_repeated(state, event, now):
        return Step(state, (), "the same request again")
    handlers = HANDLERS[kind_of(event)]
    if state.in_place is not None and state.phase is not Phase.STOPPING:
        return handlers.in_place(state, event, now)
    return handlers.restart(state, event, now)


def _is_repeated(state: AgentState, event: LeaveRequested, now: float) -> bool:
    before = state.leave_request
    if before is None:
        return False
    patient = state.settings.patient and event.signum != signal.SIGINT
    return patient or before.repeated_by(event.signum, now)


def kind_of(event: LifecycleEvent) -> type:
    """What has handlers: the type of an event, or of the message that a worker has sent."""
    return type(event.message) if isinstance(event, WorkerSaid) else type(event)


# ---------------------------------------------------------------- the fork server


def _fork_server_ready(state: AgentState, event: ForkServerReady, now: float) -> Step:
    actions: list[Action] = []
    if event.why_cold:
        actions.append(TellPeople(WorkersCold(event.why_cold)))
    state = replace(state, fork_server_ready=True, fork_server_deaths=0)
    if state.phase is not Phase.STARTING:
        return Step(state, tuple(actions), "the fork server is ready")
    state = replace(state, phase=Phase.WAITING)
    if state.in_place:
        unregistered = replace(state.in_place, registered=False)
        return start_missing(replace(state, in_place=unregistered)).preceded_by(*actions)
    return Step(
        state, (*actions, TellRendezvous(membership_events.Join())), "the fork server is ready"
    )


def _fork_server_died(state: AgentState, event: ForkServerExited, now: float) -> Step:
    """Starts the next one; the workers have ended before, each as a killed one, and their
    replacements start when it is ready."""
    deaths = state.fork_server_deaths + 1
    state = replace(state, fork_server_ready=False, fork_server_deaths=deaths)
    if event.refused:
        text = f"the fork server cannot be started: {event.why}"
        return finish_with(state, Finish(EXIT_FAILED, text))
    if deaths > MAX_FORK_SERVER_DEATHS:
        text = f"the fork server dies each time that it is started ({event.why})"
        return finish_with(state, Finish(EXIT_FAILED, text))
    return Step(state, (TellPeople(ForkServerDied(event.why)), StartForkServer()), event.why)


# ---------------------------------------------------------------- workers


def _hello(state: AgentState, event: WorkerSaid, now: float) -> Step:
    """A worker says whether it can save and leave when asked (its state is saved)."""
    hello, sender = event.message, {event.local_rank}
    assert isinstance(hello, Hello)
    if event.local_rank not in state.alive:
        return Step(state)
    can_leave = state.can_leave | sender if hello.drains else state.can_leave - sender
    return Step(replace(state, can_leave=can_leave))


# ---------------------------------------------------------------- the rendezvous


def _ended(state: AgentState, event: Ended, now: float) -> Step:
    outcome = event.outcome
    message = "" if outcome.succeeded else outcome.reason
    return finish_with(state, Finish(outcome.exit_code, message, outcome))


def _conflict(state: AgentState, event: Conflict, now: float) -> Step:
    return finish_with(state, Finish(EXIT_USAGE, event.message))


def _store_state(state: AgentState, event: StoreState, now: float) -> Step:
    """Tells people; how long a node waits for a lost store the rendezvous decides."""
    if event.refused:
        return finish_with(state, Finish(EXIT_STORE_UNREACHABLE, event.why))
    if not event.up:
        return Step(state, (TellPeople(StoreLost(event.why)),), event.why)
    found = (TellPeople(StoreFound()),) if state.store_answered else ()
    state = replace(state, store_answered=True)
    if event.forgot:
        return Step(state, (TellPeople(StoreForgot()),), "the store has lost its memory")
    return Step(state, found, "the store answers")


def _store_trouble(state: AgentState, event: StoreTrouble, now: float) -> Step:
    refuses = StoreRefusesWrites(event.why, event.seconds)
    return Step(state, (TellPeople(refuses),), event.why)


def _store_timeout(state: AgentState, event: StoreTimeout, now: float) -> Step:
    return finish_with(state, Finish(EXIT_STORE_UNREACHABLE, event.why))


def _bad_record(state: AgentState, event: BadRecord, now: float) -> Step:
    return Step(state, (TellPeople(RecordBad(event.key, event.why)),))


# ---------------------------------------------------------------- which function handles what

Handler = Callable[[AgentState, Any, float], Step]


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """Who handles an event.

    Attributes:
        restart: while workers are started again for each round, or are being stopped.
        in_place: while they keep their process.
    """

    restart: Handler
    in_place: Handler


def _both(handler: Handler) -> EventHandlers:
    return EventHandlers(handler, handler)


def _only_in_place(handler: Handler) -> EventHandlers:
    """For what is about workers in place, and is too late once they are being stopped."""
    return EventHandlers(lambda state, event, now: Step(state, (), "not in place"), handler)


HANDLERS: dict[type, EventHandlers] = {
    ForkServerReady: _both(_fork_server_ready),
    ForkServerExited: _both(_fork_server_died),
    WorkerExited: EventHandlers(restart_lifecycle.worker_exited, in_place_lifecycle.worker_exited),
    # what workers say
    Hello: _both(_hello),
    Ready: _both(in_place_lifecycle.worker_ready),
    Left: _only_in_place(in_place_lifecycle.worker_left),
    Trained: _only_in_place(in_place_lifecycle.worker_trained),
    Returned: _only_in_place(in_place_lifecycle.worker_returned),
    Heard: _only_in_place(hang_detection.worker_answered),
    # what the clocks say
    ProgressSeen: _both(hang_detection.progress_seen),
    Alarm: EventHandlers(restart_lifecycle.alarm, in_place_lifecycle.alarm),
    # who asks this node to leave
    LeaveRequested: EventHandlers(
        restart_lifecycle.leave_requested, in_place_leaving.leave_requested
    ),
    # what the rendezvous says
    Sealed: EventHandlers(restart_lifecycle.sealed, in_place_lifecycle.sealed),
    Switch: EventHandlers(restart_lifecycle.switch, in_place_lifecycle.switch),
    Excluded: EventHandlers(restart_lifecycle.excluded, in_place_lifecycle.excluded),
    Fenced: _both(restart_lifecycle.excluded),
    Waiting: EventHandlers(restart_lifecycle.waiting, in_place_lifecycle.waiting),
    Prepare: _both(in_place_lifecycle.prepare),
    Surveyed: _only_in_place(hang_detection.surveyed),
    Ended: _both(_ended),
    Conflict: _both(_conflict),
    # what the rendezvous says of its store
    StoreState: _both(_store_state),
    StoreTrouble: _both(_store_trouble),
    StoreTimeout: _both(_store_timeout),
    BadRecord: _both(_bad_record),
}
