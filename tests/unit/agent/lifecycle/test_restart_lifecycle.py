"""Rounds whose workers are started for each of them, as tables of events."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_state import Phase
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    Finish,
    ForwardSignal,
    LeaveRequested,
    SetAlarm,
    StartWorkers,
    StopWorkers,
    TellPeople,
    TellWorkers,
    WorkerExited,
)
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.records import (
    ASKED,
    FAILED,
    KILLED,
    PLANNED,
)
from elastic_runtime.rendezvous.core.membership_events import Goodbye, Join, Leaving, LeftRound
from elastic_runtime.rendezvous.core.notices import (
    Excluded,
    Fenced,
    Switch,
    Waiting,
)
from tests.unit.agent.lifecycle.restart_agent import (
    SETTINGS,
    ended_by_us,
    failed,
    hello,
    killed,
    running,
)


def test_the_workers_get_the_signal_that_asked_the_node() -> None:
    assert running(LeaveRequested(signal.SIGUSR1)).one(StopWorkers).signum == signal.SIGUSR1
    assert running(Switch(1, False, "node c joins")).one(StopWorkers).signum == signal.SIGTERM


@pytest.mark.parametrize(("signum", "told"), [(signal.SIGUSR1, True), (15, False), (2, False)])
def test_a_script_that_leaves_by_itself_gets_its_own_signals(signum: int, told: bool) -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signum))
    assert walk.one(TellWorkers)
    assert walk.none(ForwardSignal) != told


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
    assert walk.one(TellWorkers).message == messages.Leave(1, "node c joins")
    assert walk.none(StopWorkers)
    assert walk.one(SetAlarm).at == 130.0
    walk.play(WorkerExited(1, 0, 79, left_at_step=True), WorkerExited(1, 1, 79, left_at_step=True))
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


def test_a_round_that_breaks_while_its_workers_leave_is_ended_at_once() -> None:
    walk = running(hello(1, 0), hello(1, 1), Switch(1, False, "x"))
    walk.play(Switch(1, True, "node b lost"))
    assert walk.one(StopWorkers).grace == SETTINGS.timeouts.broken_grace


def test_a_failure_elsewhere_brings_a_done_node_back() -> None:
    walk = running(WorkerExited(1, 0, 0), WorkerExited(1, 1, 0), Switch(1, True, "b failed"))
    assert walk.said(LeftRound).stays
    assert walk.state.phase is Phase.WAITING


def test_a_node_that_is_asked_to_leave_says_goodbye_and_ends() -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signal.SIGTERM))
    assert walk.said(Leaving)
    assert walk.one(TellWorkers)
    walk.play(WorkerExited(1, 0, 79, left_at_step=True), WorkerExited(1, 1, 79, left_at_step=True))
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


def test_a_patient_node_is_hurried_by_ctrl_c_alone() -> None:
    walk = running(hello(1, 0), hello(1, 1))
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
    assert walk.unsaid(Join)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.said(Join)
    assert walk.unsaid(LeftRound)


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
    assert running(LeaveRequested(15), few).none(TellPeople)
