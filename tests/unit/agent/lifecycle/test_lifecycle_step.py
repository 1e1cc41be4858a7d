"""The lifecycle of an agent whose workers are started for each round, and random walks."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any, get_args

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
    ForwardSignal,
    LeaveRequested,
    LifecycleEvent,
    SetAlarm,
    StartForkServer,
    StartWorkers,
    StopWorkers,
    TellPeople,
    TellRendezvous,
    TellWorkers,
    WorkerExited,
    WorkerMessage,
    WorkerSaid,
)
from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT, EXIT_STORE_UNREACHABLE
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.records import (
    ASKED,
    FAILED,
    KILLED,
    LACKS_RESOURCES,
    PLANNED,
    START,
    FaultReport,
    OutcomeRecord,
)
from elastic_runtime.rendezvous.core.membership_events import (
    Done,
    Goodbye,
    Join,
    Leaving,
    LeftRound,
)
from elastic_runtime.rendezvous.core.notices import (
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Sealed,
    StoreState,
    StoreTimeout,
    Switch,
    Waiting,
)
from tests.unit.agent.lifecycle.agents import (
    BREAKS,
    SETTINGS,
    Walk,
    can_leave,
    ended_by_us,
    failed,
    hello,
    killed,
    left_at_step,
    make_round,
    running,
    sealed,
)

ENDED_WELL = WorkerExited(1, 0, 0), WorkerExited(1, 1, 0)
JOINS = Switch(1, False, "node c joins")


def test_a_node_asks_in_only_when_its_workers_can_start_at_once() -> None:
    walk = Walk()
    assert walk.one(StartForkServer)
    assert not walk.said(Join)
    walk.play(ForkServerReady())
    assert walk.one_said(Join)


def test_a_conflict_ends_a_node_that_runs_nothing() -> None:
    walk = Walk(ForkServerReady(), Conflict("another job"))
    assert walk.one(Finish).message == "another job"


def test_a_store_that_was_waited_for_too_long_ends_the_agent() -> None:
    walk = Walk(ForkServerReady(), StoreTimeout("it does not answer"))
    finish = walk.one(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_STORE_UNREACHABLE, "it does not answer")


def test_a_lost_store_does_not_stop_a_running_group() -> None:
    walk = running(StoreState(False, "down"))
    assert not walk.asked(StopWorkers, Finish, SetAlarm)


def test_the_round_is_left_before_the_next_fork_server_is_there() -> None:
    walk = running(killed(0), killed(1))
    assert (walk.one_said(LeftRound).fault.kind, walk.one_said(LeftRound).stays) == (KILLED, True)
    walk.play(ForkServerExited("killed"))
    assert walk.one(StartForkServer)
    # Whoever starts workers meanwhile has them wait for it.
    walk.play(sealed(2))
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
def test_whatever_happens_a_round_is_left_without_workers(events: list[LifecycleEvent]) -> None:
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


# Rounds whose workers are started for each of them, as tables of events.


def test_the_workers_get_the_signal_that_asked_the_node() -> None:
    assert running(LeaveRequested(signal.SIGUSR1)).one(StopWorkers).signum == signal.SIGUSR1
    planned = running(JOINS).one(StopWorkers)
    assert (planned.signum, planned.grace) == (signal.SIGTERM, SETTINGS.timeouts.grace)


@pytest.mark.parametrize(("signum", "told"), [(signal.SIGUSR1, True), (15, False), (2, False)])
def test_a_script_that_leaves_by_itself_gets_its_own_signals(signum: int, told: bool) -> None:
    walk = can_leave(LeaveRequested(signum))
    assert walk.one(TellWorkers)
    assert bool(walk.asked(ForwardSignal)) == told


def test_a_sealed_round_starts_its_workers() -> None:
    walk = running()
    start = walk.one(StartWorkers)
    assert (start.round.number, start.group_rank) == (1, 0)
    assert walk.state.phase is Phase.RUNNING


def test_a_killed_worker_takes_its_siblings_along_and_the_round_is_left_after_them() -> None:
    walk = running(killed(1))
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.broken_grace
    assert not walk.said(LeftRound)
    walk.play(ended_by_us(0))
    left = walk.one_said(LeftRound)
    assert (left.round, left.fault.kind, left.fault.rank, left.stays) == (1, KILLED, 1, True)
    assert walk.state.phase is Phase.WAITING


def test_workers_that_we_end_are_not_failures() -> None:
    walk = running(BREAKS, ended_by_us(0), ended_by_us(1))
    fault = walk.one_said(LeftRound).fault
    assert (fault.kind, fault.reason) == (PLANNED, "node b lost")


def test_an_own_error_right_after_the_order_to_stop_is_still_told() -> None:
    walk = running(Switch(1, True, "broke"), failed(0, "ValueError: mine"), ended_by_us(1))
    assert walk.one_said(LeftRound).fault.kind == FAILED


def test_a_planned_change_lets_workers_with_a_checkpointer_choose_the_step() -> None:
    walk = can_leave(JOINS)
    assert walk.one(TellWorkers).message == messages.Leave(1, "node c joins")
    assert not walk.asked(StopWorkers)
    assert walk.one(SetAlarm).at == 130.0
    walk.play(left_at_step(0), left_at_step(1))
    assert walk.one_said(LeftRound).fault.kind == PLANNED
    assert walk.state.phase is Phase.WAITING


def test_a_worker_that_makes_no_more_steps_is_not_asked_to_leave_at_one() -> None:
    walk = can_leave(hello(1, 1, can=False), JOINS)
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.grace
    assert not walk.asked(TellWorkers)


@pytest.mark.parametrize("event", [Alarm(), BREAKS])
def test_workers_that_do_not_leave_in_time_or_whose_round_breaks_are_ended(event: Any) -> None:
    assert can_leave(JOINS, event).one(StopWorkers).grace == SETTINGS.timeouts.broken_grace


def test_a_failure_elsewhere_brings_a_done_node_back() -> None:
    walk = running(*ENDED_WELL, Switch(1, True, "b failed"))
    assert walk.one_said(LeftRound).stays
    assert walk.state.phase is Phase.WAITING


def test_a_node_that_is_asked_to_leave_says_goodbye_and_ends() -> None:
    walk = can_leave(LeaveRequested(signal.SIGTERM))
    assert walk.one_said(Leaving)
    assert walk.one(TellWorkers)
    walk.play(left_at_step(0), left_at_step(1))
    left = walk.one_said(LeftRound)
    assert (left.stays, left.fault.kind) == (False, ASKED)
    assert walk.one_said(Goodbye)
    assert walk.one(Finish).exit_code == EXIT_LEFT


def test_asked_twice_ends_at_once() -> None:
    walk = running(LeaveRequested(signal.SIGTERM))
    walk.play(LeaveRequested(signal.SIGTERM), now=102.5)
    assert walk.one(StopWorkers).grace == 0.0
    walk.play(killed(0), killed(1))
    assert walk.one(Finish).exit_code == 128 + signal.SIGTERM


def test_the_same_signal_shortly_after_is_the_same_request() -> None:
    walk = can_leave(LeaveRequested(signal.SIGTERM))
    walk.play(LeaveRequested(signal.SIGTERM), now=101.9)
    assert not walk.actions
    walk.play(LeaveRequested(signal.SIGINT), now=101.9)
    assert walk.one(StopWorkers).grace == 0.0


def test_a_patient_node_is_hurried_by_ctrl_c_alone() -> None:
    walk = can_leave()
    walk.state = replace(walk.state, settings=replace(walk.state.settings, patient=True))
    walk.play(LeaveRequested(signal.SIGTERM), now=100.0)
    # At the end of the time that preemption leaves, for example; Slurm kills what is left then.
    for later in (signal.SIGTERM, signal.SIGUSR1):
        walk.play(LeaveRequested(later), now=130.0)
        assert not walk.actions
    walk.play(LeaveRequested(signal.SIGINT), now=131.0)
    assert walk.one(StopWorkers).grace == 0.0


def test_an_excluded_node_stops_before_it_joins_again() -> None:
    walk = running(Excluded("round 2 was formed without this node"))
    assert walk.one(StopWorkers)
    assert not walk.said(Join)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.one_said(Join)
    assert not walk.said(LeftRound)


def test_a_node_that_runs_nothing_joins_again_when_it_is_excluded() -> None:
    excluded = Excluded("round 2 was formed without this node")
    assert not Walk(excluded).said(Join), "it has asked nobody yet"
    assert Walk(ForkServerReady(), excluded).one_said(Join)


def test_a_node_that_stops_leaves_after_that_when_it_is_asked_to() -> None:
    walk = running(killed(0), LeaveRequested(15))
    assert walk.one_said(Leaving)
    assert not walk.asked(StopWorkers, TellWorkers)
    walk.play(JOINS)
    assert not walk.actions
    walk.play(ended_by_us(1))
    assert not walk.one_said(LeftRound).stays


def test_a_fenced_node_stops_its_workers() -> None:
    assert running(Fenced("no contact")).one(StopWorkers)


def test_news_of_an_older_round_is_ignored() -> None:
    walk = running()
    assert walk.play(killed(0, number=7)).actions == ()
    assert walk.play(Switch(7, True, "old")).actions == ()
    assert walk.state.phase is Phase.RUNNING


def test_a_node_that_was_asked_to_leave_waits_for_nobody() -> None:
    few = Waiting("waiting for at least 2 nodes", 1, 2, 2)
    assert isinstance(running(few).one(TellPeople).event, JobWaiting)
    assert not running(LeaveRequested(15), few).asked(TellPeople)


# How a round ends on this node, and how its agent does.


def test_the_cause_is_reported_and_not_its_echo() -> None:
    echo = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    walk = running(failed(0, echo), failed(1, "ValueError: the cause"))
    assert walk.one_said(LeftRound).fault.signature == "ValueError: the cause"


def test_all_workers_ending_well_is_done_and_not_left() -> None:
    walk = running(*ENDED_WELL)
    assert walk.one_said(Done).round == 1
    assert not walk.said(LeftRound)
    assert walk.state.phase is Phase.DONE


def test_what_fails_once_the_node_was_asked_to_leave_is_no_failure_of_the_script() -> None:
    walk = can_leave(LeaveRequested(signal.SIGTERM))
    text = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."
    walk.play(failed(0, text), ended_by_us(1))
    assert (walk.one_said(LeftRound).fault.kind, walk.one_said(LeftRound).stays) == (ASKED, False)


def test_the_end_of_the_job_ends_the_agent_with_its_code() -> None:
    walk = running(*ENDED_WELL)
    walk.play(Ended(OutcomeRecord("life", True, EXIT_DONE, "well")))
    assert walk.one(Finish).exit_code == EXIT_DONE
    walk = running(Ended(OutcomeRecord("life", False, EXIT_FAILED, "budget spent")))
    assert not walk.asked(Finish)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.one(Finish).exit_code == EXIT_FAILED
    assert walk.one_said(Goodbye)


def test_a_node_without_room_for_its_workers_leaves_and_says_why() -> None:
    fault = FaultReport(1, START, "worker 0 cannot be started: no room", signature=LACKS_RESOURCES)
    walk = running(WorkerExited(1, 0, 127, fault=fault))
    assert walk.one(StopWorkers)
    walk.play(ended_by_us(1))
    left = walk.one_said(LeftRound)
    assert (left.stays, left.fault) == (False, fault)
    finish = walk.one(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_FAILED, fault.reason)
