"""The lifecycle of an agent around its rounds, and by random walks."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.lifecycle_state import Phase
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    Finish,
    ForkServerExited,
    ForkServerReady,
    LeaveRequested,
    LifecycleEvent,
    SetAlarm,
    StartForkServer,
    StartWorkers,
    StopWorkers,
    TellRendezvous,
    WorkerExited,
    WorkerMessage,
    WorkerSaid,
)
from elastic_runtime.errors import EXIT_FAILED, EXIT_STORE_UNREACHABLE
from elastic_runtime.protocol.records import (
    KILLED,
    OutcomeRecord,
)
from elastic_runtime.rendezvous.core.membership_events import Done, Goodbye, Join, LeftRound
from elastic_runtime.rendezvous.core.notices import (
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Sealed,
    StoreState,
    StoreTimeout,
    Switch,
)
from tests.unit.agent.lifecycle.restart_agent import (
    Walk,
    ended_by_us,
    failed,
    hello,
    killed,
    make_round,
    running,
)


def test_a_node_asks_in_only_when_its_workers_can_start_at_once() -> None:
    walk = Walk()
    assert walk.one(StartForkServer)
    assert walk.unsaid(Join)
    walk.play(ForkServerReady())
    assert walk.said(Join)


def test_a_conflict_ends_a_node_that_runs_nothing() -> None:
    walk = Walk(ForkServerReady(), Conflict("another job"))
    assert walk.one(Finish).message == "another job"


def test_a_store_that_was_waited_for_too_long_ends_the_agent() -> None:
    walk = Walk(ForkServerReady(), StoreTimeout("it does not answer"))
    finish = walk.one(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_STORE_UNREACHABLE, "it does not answer")


def test_a_lost_store_does_not_stop_a_running_group() -> None:
    walk = running(StoreState(False, "down"))
    assert walk.none(StopWorkers, Finish, SetAlarm)


def test_the_round_is_left_before_the_next_fork_server_is_there() -> None:
    walk = running(killed(0), killed(1))
    assert (walk.said(LeftRound).fault.kind, walk.said(LeftRound).stays) == (KILLED, True)
    walk.play(ForkServerExited("killed"))
    assert walk.one(StartForkServer)
    # Whoever starts workers meanwhile has them wait for it.
    walk.play(Sealed(make_round(2), 0))
    assert walk.one(StartWorkers).round.number == 2
    walk.play(ForkServerReady())
    assert not walk.actions
    assert walk.state.phase is Phase.RUNNING


def test_a_fork_server_that_is_never_ready_ends_the_agent() -> None:
    walk = Walk(*(ForkServerExited("no torch") for _ in range(3)))
    assert walk.one(StartForkServer)
    walk.play(ForkServerExited("no torch"))
    assert "no torch" in walk.one(Finish).message


def test_a_fork_server_that_the_machine_has_no_room_for_ends_the_agent() -> None:
    walk = running(ForkServerExited("no room: raise the limit", refused=True))
    assert walk.one(StopWorkers)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.one(Finish).exit_code == EXIT_FAILED
    assert "raise the limit" in walk.one(Finish).message


EVENTS = st.one_of(
    st.builds(ForkServerReady),
    st.builds(ForkServerExited, st.just("x")),
    st.builds(
        WorkerExited, st.integers(1, 3), st.integers(0, 1), st.just(0), st.just(False), st.none()
    ),
    st.builds(killed, st.integers(0, 1), st.integers(1, 3)),
    st.builds(failed, st.integers(0, 1), st.just("ValueError: x"), st.integers(1, 3)),
    st.builds(hello, st.integers(1, 3), st.integers(0, 1)),
    st.builds(LeaveRequested, st.just(15)),
    st.builds(Alarm),
    st.builds(Sealed, st.builds(make_round, st.integers(1, 3)), st.just(0)),
    st.builds(Switch, st.integers(1, 3), st.booleans(), st.just("x")),
    st.builds(Excluded, st.just("x")),
    st.builds(Fenced, st.just("x")),
    st.builds(StoreState, st.booleans()),
    st.builds(StoreTimeout, st.just("x")),
    st.builds(Ended, st.just(OutcomeRecord("life", True, 0, "x"))),
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happens_a_round_is_left_only_without_workers(
    events: list[LifecycleEvent],
) -> None:
    """The agent's promise to the others, and a few more that hold in every life."""
    walk = Walk()
    ends = 0
    alive: frozenset[int] = frozenset()
    for event in events:
        before = walk.state
        walk.play(event)
        for action in walk.actions:
            match action:
                case StartWorkers():
                    assert not before.alive
                    # Without a fork server they wait for the next one.
                    assert before.fork_server_ready or before.fork_server_deaths
                case TellRendezvous(LeftRound() | Done() | Join() | Goodbye()):
                    assert not walk.state.alive
                case Finish():
                    ends += 1
        alive = walk.state.alive
        if walk.state.phase in (Phase.WAITING, Phase.DONE, Phase.STARTING, Phase.ENDED):
            assert not alive
    assert ends == (walk.state.phase is Phase.ENDED)


@pytest.mark.parametrize("signals", [1, 2])
def test_signals_end_a_node_that_waits(signals: int) -> None:
    walk = Walk(ForkServerReady(), *(LeaveRequested(2) for _ in range(signals)))
    assert walk.state.phase is Phase.ENDED
    assert replace(walk.state).finish is not None


def test_each_event_has_a_row() -> None:
    """One that nobody handles would end the agent."""
    kinds = {*get_args(LifecycleEvent), *get_args(WorkerMessage)} - {WorkerSaid}
    assert lifecycle_step.HANDLERS.keys() == kinds
