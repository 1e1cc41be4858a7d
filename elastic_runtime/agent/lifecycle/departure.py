"""How a node whose workers keep their process leaves the job: pure.

It may be the only one that remembers what was trained last. So it goes by way of a round, whose
ranks all hear that it goes: the last ones save. Between two rounds it waits for the next one, or
until it is the last node, and then saves by itself. The same holds for one whose workers had agreed
to leave a round, and had said that it stays, when it was asked; and for one that was asked in a
round which broke before its ranks could agree: the others may have been asked as well.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.agent.lifecycle.fault_classification import signal_name
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    Asked,
    ChangeWorkers,
    DismissWorkers,
    Finish,
    Phase,
    Report,
    SayDrain,
    Seat,
    SetAlarm,
    State,
    Step,
    StopWorkers,
    Then,
)
from elastic_runtime.agent.lifecycle.termination import end, passed_on
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.events.node_events import NodeLeaving
from elastic_runtime.protocol.records import ASKED, FaultReport
from elastic_runtime.system.repeated_signals import Request

# For so long a node that is asked to leave between two rounds waits for the next one, in seconds
# and as a part of the grace; and the leader, as somebody has to be the last one.
_HOLDS = (5.0, 1 / 3)
_LEADER_HOLDS = (10.0, 2 / 3)
# The same for one that is not served by the store: no round is formed while that is away.
_UNSERVED_HOLDS = (1.0, 1 / 3)
# How often it looks whether it is the last one, in seconds.
_LOOKS = 0.5


def asked(state: State, event: Asked, now: float) -> Step | None:
    """A signal asks the node to leave; None: no worker of it has anything that others may need."""
    if state.asked:
        return None
    if state.phase is Phase.WAITING:
        return _asked_between(state, event, now)
    if state.phase is not Phase.RUNNING or not state.seated(Seat.IN):
        return None
    state, drains = drained(_on_its_way(state, event, now), now + state.settings.timeouts.grace)
    if state.interrupted_at is not None:
        drains = (SayDrain(),)
    actions = (_leaving(event), *passed_on(event.signum), *drains)
    return Step(state, actions, "asked to leave")


def _asked_between(state: State, event: Asked, now: float) -> Step | None:
    """Between two rounds these workers may be the only ones that remember."""
    if not _remembering(state):
        return None
    state = replace(_on_its_way(state, event, now), holds_from=now)
    return hold(state, [_leaving(event), *passed_on(event.signum)], event, now)


def _on_its_way(state: State, event: Asked, now: float) -> State:
    finish = Finish(EXIT_LEFT, "left on request")
    return replace(state, asked=Request(event.signum, now), then=Then.LEAVE, finish=finish)


def _leaving(event: Asked) -> Report:
    return Report(NodeLeaving(f"asked to by {signal_name(event.signum)}"))


def drained(state: State, due: float) -> tuple[State, tuple[Action, ...]]:
    """Has all ranks leave the round at a step that they agree on, as this node goes."""
    last = state.round
    assert last is not None
    why = state.why or FaultReport(last.number, ASKED, "the node was asked to leave")
    state = replace(state, why=why)
    if last.size == 1:
        state = replace(state, finish=Finish(EXIT_LEFT, "stopped on request"))
    change = ChangeWorkers(last.number, "this node was asked to leave", goes=True)
    return state, (SayDrain(), change, SetAlarm(due))


def _remembering(state: State) -> list[int]:
    last, ready = state.round, state.seated(Seat.READY)
    return [rank for rank in ready if last and state.seats[rank].since <= last.number]


def still_needed(state: State, *, broken: bool) -> bool:
    """Whether others may need what this node remembers, though it was asked to leave.

    Args:
        state: the workers of this node have left the round.
        broken: the round broke.
    """
    if state.asked is None:
        return False
    return state.counted_on or (broken and not state.released and bool(_remembering(state)))


def hold(state: State, actions: list[Action], seen: Asked | Alarm, now: float) -> Step:
    """Waits for the next round, to leave by way of it; the last node saves by itself, and leaves.

    Args:
        state: between two rounds, of a node that was asked to leave.
        actions: come first.
        seen: says whether this is the last node, whether it leads, and whether the store is there.
        now: seconds on the monotonic clock.
    """
    assert state.asked is not None
    seconds, part = _LEADER_HOLDS if seen.leads else _HOLDS
    if not seen.served:
        seconds, part = _UNSERVED_HOLDS
    grace = state.settings.timeouts.grace
    due = min(state.holds_from + min(seconds, part * grace), state.asked.at + grace)
    remembering = _remembering(state)
    if seen.alone and remembering:
        state = replace(state, finish=Finish(EXIT_LEFT, "stopped on request"))
        return dismiss(state, [*actions, SayDrain()], remembering[0], "asked to leave", now)
    if not remembering or now >= due:
        return dismiss(state, [*actions, SayDrain()], None, "asked to leave", now)
    actions.append(SetAlarm(min(now + _LOOKS, due)))
    return Step(state, tuple(actions), "leaves by way of the next round")


def dismiss(
    state: State, actions: list[Action], saves: int | None, reason: str, now: float
) -> Step:
    """From here on it is a matter of processes that end, or are ended."""
    if not state.alive:
        return end(replace(state, told_to_stop=True, then=Then.END, draining=True), actions)
    # Those on their way to elastic.run would hear of it only there.
    if coming := state.seated(Seat.BOOT):
        actions.append(StopWorkers(0.0, coming))
    actions += [DismissWorkers(saves), SetAlarm(now + state.settings.timeouts.grace)]
    state = replace(state, phase=Phase.STOPPING, told_to_stop=True, then=Then.END, draining=True)
    return Step(state, tuple(actions), reason)
