"""Which workers stand still for ever, as far as their agent can tell by asking them: pure."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.agent.lifecycle.lifecycle_types import (
    AskWorkers,
    KillWorkers,
    NoNews,
    NoProgress,
    Phase,
    Report,
    Seat,
    State,
    Step,
    Then,
    WorkerHeard,
)
from elastic_runtime.events.worker_events import WorkerStuck
from elastic_runtime.protocol.messages import HANG

# Who has not answered by then is silent, in seconds. A machine whose cores are taken away now and
# then makes a healthy worker late by one.
SILENCE = 2.0


def who_is_stuck(state: State, inside: tuple[int, ...], now: float) -> dict[int, str]:
    """Which of the workers that were asked where they are will not leave the round, and why.

    Args:
        state: the present state; they have had the time to answer.
        inside: local ranks of those that are still in the round.
        now: seconds on the monotonic clock.
    """
    begun, settings = state.interrupted_at or now, state.settings
    # Nobody waits for a node that leaves; whoever has asked it to waits for its end.
    leaves = state.then is Then.LEAVE
    begun = max(begun, state.asked.at) if state.asked else begun
    patience = (
        min(settings.timeouts.grace, settings.timeouts.rejoin_timeout)
        if leaves
        else settings.timeouts.rejoin_timeout
    )
    option = "--grace" if leaves else "--rejoin-timeout"
    # All others have waited for it, perhaps in the first step of this process, of which its own
    # agent does not know how long it may take.
    all_wait = state.why is not None and HANG in state.why.reason
    found = {}
    for rank in inside:
        heard = state.heard.get(rank)
        if heard is None:
            found[rank] = "it does not answer"
        elif heard.collective:
            found[rank] = "it waits for ranks that are gone"
        elif all_wait and not heard.busy:
            found[rank] = f"all others wait for it, while it is at {heard.where} (--hang-timeout)"
        elif state.overdue and not heard.busy:
            found[rank] = (
                f"no step for {state.overdue:.0f} s, and it is at {heard.where} (--hang-timeout)"
            )
        elif now >= begun + patience:
            found[rank] = f"it has come to no commit, and is at {heard.where} ({option})"
    return found


def hung_at(heard: WorkerHeard | None) -> str:
    """What a worker that holds up all others did, for people: a predicate to its name.

    Args:
        heard: what it has said of where it is; None: it has not answered.
    """
    return f"hung at {heard.where}" if heard else "hung and does not answer"


def overdue(state: State, event: NoProgress, now: float) -> Step:
    """Takes note that a step has become a hang in a round that has broken for another reason.

    Before the break a worker may have waited for others for any time, so it counts from there. What
    it says when it is asked next decides; the first time it may have been released just then.

    Args:
        state: the present state; the workers were interrupted.
        event: for how long they have made no step, and how long one may take.
        now: seconds on the monotonic clock.
    """
    begun = state.interrupted_at or now
    if now < max(begun, state.busy_at) + event.limit or state.asking or state.asked_at < begun:
        return Step(state)
    return Step(replace(state, overdue=event.seconds), (), "a worker hangs in a broken round")


def no_news(state: State, event: NoNews, now: float) -> Step:
    """Ends who does not answer for as long. What they do may take any time, but they answer.

    Args:
        state: the present state.
        event: how long nothing was heard of them, and where they are.
        now: seconds on the monotonic clock.
    """
    inside = state.seated(Seat.IN)
    patience = max(state.settings.timeouts.rejoin_timeout, SILENCE)
    if state.phase is not Phase.RUNNING or not inside or state.interrupted_at is not None:
        return Step(state)
    if now < state.asked_at + patience:
        return Step(state)
    silent = tuple(rank for rank in inside if rank not in state.heard) if state.asking else ()
    if not silent:
        state = replace(state, asking=True, asked_at=now, heard={})
        return Step(state, (AskWorkers(inside),), f"workers that are {event.where}")
    why = f"{event.where} for {event.seconds:.0f} s, and no answer for {patience:.0f} s"
    report = Report(WorkerStuck(why, list(silent)))
    kill = KillWorkers(silent, f"stood still: {why}")
    return Step(replace(state, asking=False), (report, kill), why)
