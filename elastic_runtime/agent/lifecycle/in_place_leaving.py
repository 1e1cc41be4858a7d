"""How a node whose workers keep their process leaves the job: pure.

It may be the only node that still has the last steps in memory. So it leaves in a round: all
ranks of that round learn that it leaves, and if no node stays, its ranks save. Between two rounds
it waits for the next one, or until it is the last node, and then saves by itself. The same applies
if it is asked to leave when its workers have already agreed to leave a round, and have announced
that the node stays; and if it is asked in a round that breaks before its ranks could agree: the
other nodes may have been asked as well.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.agent.lifecycle import restart_lifecycle
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    Phase,
    Step,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    Alarm,
    Finish,
    LeaveRequested,
    SetAlarm,
    StopWorkers,
    TellRendezvous,
    TellWorkers,
)
from elastic_runtime.agent.lifecycle.termination import end_agent, forward_signal
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.protocol.messages import Change, Dismiss
from elastic_runtime.protocol.records import ASKED, FaultReport
from elastic_runtime.rendezvous.core import membership_events
from elastic_runtime.system.repeated_signals import StopRequest

# How long a node that is asked to leave between two rounds waits for the next one: seconds, and
# share of the grace, of which the shorter one counts. The leader waits longer, as one node has to
# be the last.
_WAITS = (5.0, 1 / 3)
_LEADER_WAITS = (10.0, 2 / 3)
# The same while the store does not answer: no round is formed without it.
_UNSERVED_WAITS = (1.0, 1 / 3)
# How often it looks whether it is the last one, in seconds.
_LOOKS = 0.5


def leave_requested(state: AgentState, event: LeaveRequested, now: float) -> Step:
    """A signal asks the node to leave: how depends on whether others may need its workers."""
    if state.leave_request:
        return restart_lifecycle.leave_requested(state, event, now)
    if state.phase is Phase.WAITING and _ranks_with_state(state):
        state = _with_request(state, event, now)
        state = replace(state, in_place=replace(state.require_in_place(), waiting_since=now))
        report = restart_lifecycle.report_leaving(event)
        waits = wait_to_leave(state, event, now)
        return waits.preceded_by(report, *forward_signal(event.signum))
    if state.phase is not Phase.RUNNING or not state.ranks_in(WorkerPhase.IN_ROUND):
        return restart_lifecycle.leave_requested(state, event, now)
    due = now + state.settings.timeouts.grace
    state, announced = announce_leaving(_with_request(state, event, now), due)
    if state.require_in_place().interrupted_at is not None:
        announced = (TellRendezvous(membership_events.Leaving()),)
    report = restart_lifecycle.report_leaving(event)
    return Step(state, (report, *forward_signal(event.signum), *announced), "asked to leave")


def _with_request(state: AgentState, event: LeaveRequested, now: float) -> AgentState:
    return replace(
        state,
        leave_request=StopRequest(event.signum, now),
        after_round=AfterRound.LEAVE,
        finish=Finish(EXIT_LEFT, "left on request"),
    )


def announce_leaving(state: AgentState, due: float) -> tuple[AgentState, tuple[Action, ...]]:
    """Has all ranks leave the round at a step that they agree on, as this node goes."""
    last = state.round
    assert last is not None
    reason = FaultReport(last.number, ASKED, "the node was asked to leave")
    state = state.with_leave_reason(reason)
    if last.size == 1:
        state = replace(state, finish=Finish(EXIT_LEFT, "stopped on request"))
    change = TellWorkers(Change(last.number, "this node was asked to leave", goes=True))
    return state, (TellRendezvous(membership_events.Leaving()), change, SetAlarm(due))


def _ranks_with_state(state: AgentState) -> list[int]:
    """The workers that remember what was trained in the last round."""
    last, ready = state.round, state.ranks_in(WorkerPhase.READY)
    workers = state.require_in_place().workers
    return [rank for rank in ready if last and workers[rank].since <= last.number]


def still_needed(state: AgentState, *, broken: bool) -> bool:
    """Whether others may need what this node remembers, though it was asked to leave.

    Args:
        state: the workers of this node have left the round.
        broken: the round broke.
    """
    if state.leave_request is None:
        return False
    in_place = state.require_in_place()
    surprised = broken and not in_place.leaving_known
    return in_place.promised_to_stay or (surprised and bool(_ranks_with_state(state)))


def wait_to_leave(state: AgentState, seen: LeaveRequested | Alarm, now: float) -> Step:
    """Waits for the next round, to leave in it; the last node saves by itself, and leaves.

    Args:
        state: between two rounds, of a node that was asked to leave.
        seen: says whether this is the last node, whether it leads, and whether the store is there.
        now: seconds on the monotonic clock.
    """
    assert state.leave_request is not None
    seconds, part = _LEADER_WAITS if seen.leads else _WAITS
    if not seen.served:
        seconds, part = _UNSERVED_WAITS
    grace = state.settings.timeouts.grace
    since = state.require_in_place().waiting_since
    due = min(since + min(seconds, part * grace), state.leave_request.at + grace)
    with_state = _ranks_with_state(state)
    leaving = TellRendezvous(membership_events.Leaving())
    if seen.alone and with_state:
        state = replace(state, finish=Finish(EXIT_LEFT, "stopped on request"))
        dismissed = dismiss_workers(state, with_state[0], "asked to leave", now)
        return dismissed.preceded_by(leaving)
    if not with_state or now >= due:
        return dismiss_workers(state, None, "asked to leave", now).preceded_by(leaving)
    alarm = SetAlarm(min(now + _LOOKS, due))
    return Step(state, (alarm,), "waits for the next round, to leave in it")


def dismiss_workers(state: AgentState, saves: int | None, reason: str, now: float) -> Step:
    """Ends all workers: from here on only their processes count, not rounds.

    Args:
        state: no worker of this node is in a round.
        saves: the local rank of the one that saves what it remembers before; None: none does.
        reason: why.
        now: seconds on the monotonic clock.
    """
    state = replace(state.stopping(), after_round=AfterRound.END)
    state = replace(state, facts=replace(state.facts, leaving=True))
    if not state.alive:
        return end_agent(state)
    actions: list[Action] = []
    # Those on their way to elastic.run would read the message only there.
    if starting := state.ranks_in(WorkerPhase.STARTING):
        actions.append(StopWorkers(0.0, starting))
    if saves is not None:
        actions.append(TellWorkers(Dismiss(saves=True), (saves,)))
    if others := tuple(sorted(state.alive - {saves})):
        actions.append(TellWorkers(Dismiss(), others))
    actions.append(SetAlarm(now + state.settings.timeouts.grace))
    return Step(state, tuple(actions), reason)
