"""The lifecycle of an agent, by tables and by random walks; no process, no socket, no clock."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TypeVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.fault_classification import WorkerError, classify
from elastic_runtime.agent.lifecycle.lifecycle_state import AgentState, LifecycleSettings, Phase
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
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
from elastic_runtime.agent.lifecycle.termination import departure_message
from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT, EXIT_STORE_UNREACHABLE
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.records import (
    ASKED,
    FAILED,
    KILLED,
    NO_ROOM,
    PLANNED,
    START,
    FaultReport,
    OutcomeRecord,
)
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.events import Done, DrainNode, Goodbye, Join, LeftRound
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

SETTINGS = LifecycleSettings(workers=2)
A = TypeVar("A")


def make_round(number: int) -> RoundRecord:
    members = (Member("a", "a", "127.0.0.1", 2), Member("b", "b", "127.0.0.1", 2))
    return RoundRecord(number, "life", members, 4000, "because")


def killed(local_rank: int, number: int = 1) -> WorkerExited:
    return WorkerExited(number, local_rank, -9, fault=classify(number, local_rank, -9, None))


def failed(local_rank: int, text: str, number: int = 1) -> WorkerExited:
    fault = classify(number, local_rank, 1, WorkerError(text))
    return WorkerExited(number, local_rank, 1, fault=fault)


def ended_by_us(local_rank: int, number: int = 1) -> WorkerExited:
    return WorkerExited(number, local_rank, -15, fault=classify(number, local_rank, -15, None))


def hello(number: int, local_rank: int, can: bool = True) -> WorkerSaid:
    return WorkerSaid(local_rank, messages.Hello(local_rank, number, 1, drains=can))


class Walk:
    """Plays events and remembers the actions of the last one."""

    def __init__(self, *events: LifecycleEvent, state: AgentState | None = None) -> None:
        first = lifecycle_step.begin(SETTINGS)
        self.state = state or first.state
        self.actions: tuple[Action, ...] = first.actions
        self.play(*events)

    def play(self, *events: LifecycleEvent, now: float = 100.0) -> Walk:
        for event in events:
            step = lifecycle_step.step(self.state, event, now)
            self.state, self.actions = step.state, step.actions
        return self

    def one(self, kind: type[A]) -> A:
        (found,) = [action for action in self.actions if isinstance(action, kind)]
        return found

    def said(self, kind: type[A]) -> A:
        events = [action.event for action in self.actions if isinstance(action, TellRendezvous)]
        (found,) = [event for event in events if isinstance(event, kind)]
        return found

    def unsaid(self, kind: type) -> bool:
        said = [action.event for action in self.actions if isinstance(action, TellRendezvous)]
        return not any(isinstance(event, kind) for event in said)

    def none(self, *kinds: type) -> bool:
        return not any(isinstance(action, kinds) for action in self.actions)


def running(*events: LifecycleEvent) -> Walk:
    return Walk(ForkServerReady(), StoreState(True), Sealed(make_round(1), 0), *events)


def test_the_workers_get_the_signal_that_asked_the_node() -> None:
    assert running(LeaveRequested(signal.SIGUSR1)).one(StopWorkers).signum == signal.SIGUSR1
    assert running(Switch(1, False, "node c joins")).one(StopWorkers).signum == signal.SIGTERM


@pytest.mark.parametrize(("signum", "told"), [(signal.SIGUSR1, True), (15, False), (2, False)])
def test_a_script_that_drains_hears_of_signals_of_its_own(signum: int, told: bool) -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signum))
    assert walk.one(TellWorkers)
    assert walk.none(ForwardSignal) != told


def test_a_node_asks_in_only_when_its_workers_can_start_at_once() -> None:
    walk = Walk()
    assert walk.one(StartForkServer)
    assert walk.unsaid(Join)
    walk.play(ForkServerReady())
    assert walk.said(Join)


def test_a_sealed_round_starts_its_workers() -> None:
    walk = running()
    start = walk.one(StartWorkers)
    assert (start.round.number, start.group_rank) == (1, 0)
    assert walk.state.phase is Phase.RUNNING


def test_a_killed_worker_takes_its_siblings_along_and_the_round_is_left_after_them() -> None:
    walk = running(killed(1))
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.broken_grace
    assert walk.unsaid(LeftRound)
    walk.play(ended_by_us(0))
    left = walk.said(LeftRound)
    assert (left.round, left.fault.kind, left.fault.rank, left.stays) == (1, KILLED, 1, True)
    assert walk.state.phase is Phase.WAITING


def test_the_cause_is_reported_and_not_its_echo() -> None:
    echo = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    walk = running(failed(0, echo), failed(1, "ValueError: the cause"))
    assert walk.said(LeftRound).fault.signature == "ValueError: the cause"


def test_workers_that_we_end_are_not_failures() -> None:
    walk = running(Switch(1, True, "node b lost"), ended_by_us(0), ended_by_us(1))
    fault = walk.said(LeftRound).fault
    assert (fault.kind, fault.reason) == (PLANNED, "node b lost")


def test_an_own_error_right_after_the_order_to_stop_is_still_told() -> None:
    walk = running(Switch(1, True, "broke"), failed(0, "ValueError: mine"), ended_by_us(1))
    assert walk.said(LeftRound).fault.kind == FAILED


def test_a_planned_change_gives_plain_scripts_the_grace() -> None:
    walk = running(Switch(1, False, "node c joins"))
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.grace


def test_a_planned_change_lets_workers_with_a_checkpointer_choose_the_step() -> None:
    walk = running(hello(1, 0), hello(1, 1), Switch(1, False, "node c joins"))
    assert walk.one(TellWorkers).message == messages.Drain(1, "node c joins")
    assert walk.none(StopWorkers)
    assert walk.one(SetAlarm).at == 130.0
    walk.play(WorkerExited(1, 0, 79, drained=True), WorkerExited(1, 1, 79, drained=True))
    assert walk.said(LeftRound).fault.kind == PLANNED
    assert walk.state.phase is Phase.WAITING


def test_a_worker_that_makes_no_more_steps_is_not_asked_to_leave_at_one() -> None:
    walk = running(hello(1, 0), hello(1, 1), hello(1, 1, can=False))
    walk.play(Switch(1, False, "node c joins"))
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.grace
    assert walk.none(TellWorkers)


def test_workers_that_do_not_leave_in_time_are_ended() -> None:
    walk = running(hello(1, 0), hello(1, 1), Switch(1, False, "x"), Alarm())
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.broken_grace


def test_a_round_that_breaks_while_it_is_drained_is_ended_at_once() -> None:
    walk = running(hello(1, 0), hello(1, 1), Switch(1, False, "x"))
    walk.play(Switch(1, True, "node b lost"))
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.broken_grace


def test_all_workers_ending_well_is_done_and_not_left() -> None:
    walk = running(WorkerExited(1, 0, 0), WorkerExited(1, 1, 0))
    assert walk.said(Done).round == 1
    assert walk.unsaid(LeftRound)
    assert walk.state.phase is Phase.DONE


def test_a_failure_elsewhere_brings_a_done_node_back() -> None:
    walk = running(WorkerExited(1, 0, 0), WorkerExited(1, 1, 0), Switch(1, True, "b failed"))
    assert walk.said(LeftRound).stays
    assert walk.state.phase is Phase.WAITING


def test_asked_to_leave_a_node_drains_says_goodbye_and_ends() -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signal.SIGTERM))
    assert walk.said(DrainNode)
    assert walk.one(TellWorkers)
    walk.play(WorkerExited(1, 0, 79, drained=True), WorkerExited(1, 1, 79, drained=True))
    left = walk.said(LeftRound)
    assert (left.stays, left.fault.kind) == (False, ASKED)
    assert walk.said(Goodbye)
    assert walk.one(Finish).exit_code == EXIT_LEFT


def test_asked_twice_ends_at_once() -> None:
    walk = running(LeaveRequested(signal.SIGTERM))
    walk.play(LeaveRequested(signal.SIGTERM), now=102.5)
    assert walk.one(StopWorkers).grace == 0.0
    walk.play(killed(0), killed(1))
    assert walk.one(Finish).exit_code == 128 + signal.SIGTERM


def test_the_same_signal_shortly_after_is_the_same_request() -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signal.SIGTERM))
    walk.play(LeaveRequested(signal.SIGTERM), now=101.9)
    assert not walk.actions
    walk.play(LeaveRequested(signal.SIGINT), now=101.9)
    assert walk.one(StopWorkers).grace == 0.0


def test_what_fails_once_the_node_was_asked_to_leave_is_no_failure_of_the_script() -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signal.SIGTERM))
    walk.play(failed(0, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."))
    walk.play(ended_by_us(1))
    assert (walk.said(LeftRound).fault.kind, walk.said(LeftRound).stays) == (ASKED, False)


def test_an_excluded_node_stops_before_it_joins_again() -> None:
    walk = running(Excluded("round 2 was formed without this node"))
    assert walk.one(StopWorkers)
    assert walk.unsaid(Join)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.said(Join)
    assert walk.unsaid(LeftRound)


def test_a_fenced_node_stops_its_workers() -> None:
    assert running(Fenced("no contact")).one(StopWorkers)


def test_the_end_of_the_job_ends_the_agent_with_its_code() -> None:
    walk = running(WorkerExited(1, 0, 0), WorkerExited(1, 1, 0))
    walk.play(Ended(OutcomeRecord("life", True, EXIT_DONE, "well")))
    assert walk.one(Finish).exit_code == EXIT_DONE
    walk = running(Ended(OutcomeRecord("life", False, EXIT_FAILED, "budget spent")))
    assert walk.none(Finish)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.one(Finish).exit_code == EXIT_FAILED
    assert walk.said(Goodbye)


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


def test_a_node_without_room_for_its_workers_leaves_and_says_why() -> None:
    fault = FaultReport(1, START, "worker 0 cannot be started: no room", signature=NO_ROOM)
    walk = running(WorkerExited(1, 0, 127, fault=fault))
    assert walk.one(StopWorkers)
    walk.play(ended_by_us(1))
    left = walk.said(LeftRound)
    assert (left.stays, left.fault) == (False, fault)
    finish = walk.one(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_FAILED, fault.reason)


def test_news_of_an_older_round_is_ignored() -> None:
    walk = running()
    assert walk.play(killed(0, number=7)).actions == ()
    assert walk.play(Switch(7, True, "old")).actions == ()
    assert walk.state.phase is Phase.RUNNING


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


def test_a_node_that_was_asked_to_leave_waits_for_nobody() -> None:
    few = Waiting("waiting for at least 2 nodes", 1, 2, 2)
    assert isinstance(running(few).one(TellPeople).event, JobWaiting)
    assert running(LeaveRequested(15), few).none(TellPeople)


@pytest.mark.parametrize(
    ("saved", "accompanied", "words"),
    [
        (-1, False, "node1 left on request"),
        (0, False, "node1 left on request; step 0 is saved"),
        (7, True, "node1 left on request; step 7 is saved; other nodes may go on"),
    ],
)
def test_a_node_that_leaves_says_of_others_what_it_knows(
    saved: int, accompanied: bool, words: str
) -> None:
    assert departure_message("left on request", "node1", saved, accompanied) == words


def test_each_event_has_a_row() -> None:
    """One that nobody handles would end the agent."""
    kinds = {*get_args(LifecycleEvent), *get_args(WorkerMessage)} - {WorkerSaid}
    assert lifecycle_step.HANDLERS.keys() == kinds
