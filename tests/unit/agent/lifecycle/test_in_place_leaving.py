"""How a node whose workers keep their process leaves the job, as tables of events."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    EnterRound,
    Finish,
    ForkServerReady,
    ForwardSignal,
    LeaveRequested,
    SetAlarm,
    StartForNextRound,
    StopWorkers,
    TellWorkers,
    WorkerExited,
)
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.protocol.messages import (
    Change,
    Dismiss,
    Leave,
)
from elastic_runtime.rendezvous.core.membership_events import (
    Leaving,
    LeftRound,
)
from elastic_runtime.rendezvous.core.notices import (
    Excluded,
    Prepare,
    Switch,
    Waiting,
)
from tests.unit.agent.lifecycle.in_place_agent import (
    InPlaceAgent,
    hello,
    killed,
    left,
    ready,
    returned,
    sealed,
)


def test_a_node_that_is_asked_to_leave_leaves_at_a_common_step() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(15))
    assert agent.told(Change)[0].message.goes
    agent.take(left(1, 0, planned=True))
    agent.take(left(1, 1, planned=True))
    (said,) = agent.said(LeftRound)
    assert not said.stays
    assert agent.told(Dismiss)
    agent.take(WorkerExited(1, 0, 79, left_at_step=True))
    agent.take(WorkerExited(1, 1, 79, left_at_step=True))
    assert agent.asked(Finish)[0].exit_code == EXIT_LEFT


def test_a_handler_of_the_script_hears_of_the_signal_that_asks_the_node() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(signal.SIGUSR1))
    assert agent.asked(ForwardSignal)[0].signum == signal.SIGUSR1
    assert agent.told(Change)[0].message.goes


def _between_rounds() -> InPlaceAgent:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason="node b lost"))
    agent.take(left(1, 0))
    agent.take(left(1, 1))
    return agent


def test_the_last_node_saves_what_only_it_remembers_before_it_leaves() -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, alone=True))
    assert agent.saves() == 0
    assert not agent.asked(Finish)
    agent.take(WorkerExited(1, 1, 0))
    agent.take(WorkerExited(1, 0, 79, left_at_step=True))
    (finish,) = agent.asked(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_LEFT, "stopped on request")


def _goes_by_way_of_round_2(agent: InPlaceAgent) -> None:
    """All ranks of the next round hear that the node goes; then it does."""
    assert not agent.told(Dismiss)
    agent.take(sealed(2))
    assert agent.asked(EnterRound)
    assert agent.said(Leaving)
    assert agent.told(Change) == [TellWorkers(Change(2, "this node was asked to leave", goes=True))]
    for local_rank in (0, 1):
        agent.take(left(2, local_rank, planned=True))
    assert not agent.said(LeftRound)[0].stays
    assert agent.saves() is None


def test_a_node_that_is_asked_between_two_rounds_goes_by_way_of_the_next_one() -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, alone=False))
    assert not agent.said(Leaving)  # only who stays in is in the next round
    _goes_by_way_of_round_2(agent)


@pytest.mark.parametrize("late", [0, 1])
def test_a_node_that_is_asked_when_its_ranks_have_said_that_it_stays_keeps_their_word(
    late: int,
) -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=False, reason="node b was asked to leave"))
    agent.take(LeaveRequested(15))
    for local_rank in (0, 1):
        agent.take(left(1, local_rank, planned=True, released=local_rank != late))
    (said,) = agent.said(LeftRound)
    assert (said.stays, said.workers) == (True, 2)
    _goes_by_way_of_round_2(agent)


def _breaks_after_it_was_asked(agent: InPlaceAgent, *remember: int) -> None:
    """The round breaks before its ranks could agree on a step at which they leave it."""
    agent.take(LeaveRequested(15))
    agent.now += 20.0  # a step may be long
    for local_rank in {0, 1} - {*remember}:
        agent.take(killed(1, local_rank))
    for local_rank in remember:
        agent.take(left(1, local_rank))


@pytest.mark.parametrize("remember", [(0, 1), (0,)])
def test_a_node_that_was_asked_in_a_round_that_breaks_leaves_by_way_of_the_next_one(
    remember: tuple[int, ...],
) -> None:
    agent = InPlaceAgent().in_round()
    _breaks_after_it_was_asked(agent, *remember)
    (said,) = agent.said(LeftRound)
    assert (said.stays, said.workers) == (True, len(remember))
    assert not agent.asked(StartForNextRound)
    agent.take(sealed(2, workers=len(remember)))
    assert agent.told(Change)[0].message.goes
    for local_rank in remember:
        agent.take(left(2, local_rank, planned=True, released=True))
    assert not agent.said(LeftRound)[0].stays
    assert agent.saves() is None


def test_it_saves_by_itself_if_no_other_round_comes() -> None:
    agent = InPlaceAgent().in_round()
    _breaks_after_it_was_asked(agent, 0, 1)
    agent.now = agent.asked(SetAlarm)[-1].at
    agent.take(Alarm(alone=True))
    assert agent.saves() == 0


def test_it_does_not_wait_for_longer_than_its_grace() -> None:
    agent = InPlaceAgent().in_round()
    _breaks_after_it_was_asked(agent, 0, 1)
    agent.now += 60.0
    agent.take(Alarm(leads=True))
    assert agent.saves() is None


def test_it_goes_at_once_with_no_worker_that_remembers_anything() -> None:
    agent = InPlaceAgent().in_round()
    _breaks_after_it_was_asked(agent)
    assert not agent.said(LeftRound)[0].stays
    assert agent.asked(Finish)[0].exit_code == EXIT_LEFT


def test_a_node_whose_going_all_ranks_knew_waits_for_nobody_though_the_round_breaks() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(15))
    agent.take(left(1, 0, planned=True, released=True))
    agent.take(Switch(1, broken=True, reason="worker 3 was killed on b"))
    agent.take(left(1, 1, planned=True, released=True))
    assert not agent.said(LeftRound)[0].stays


def test_a_node_that_waits_to_go_saves_as_soon_as_it_is_the_last_one() -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, alone=False))
    agent.now = agent.asked(SetAlarm)[0].at
    agent.take(Alarm(alone=False))
    assert agent.asked(SetAlarm)[0].at > agent.now
    agent.take(Alarm(alone=True))
    assert agent.saves() == 0


def test_the_leader_waits_longer_than_the_others_so_that_one_is_the_last() -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, leads=True))
    agent.now += 7.0
    agent.take(Alarm(leads=True))
    assert not agent.told(Dismiss)
    agent.take(Alarm(alone=True, leads=True))
    assert agent.saves() == 0


@pytest.mark.parametrize("leads", [True, False])
def test_nobody_waits_long_for_a_round_that_no_store_can_form(leads: bool) -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, leads=leads))
    agent.now += 1.0
    agent.take(Alarm(leads=leads))
    assert not agent.told(Dismiss)
    agent.take(Alarm(leads=leads, served=False))
    assert agent.saves() is None


@pytest.mark.parametrize(
    "news",
    [
        Waiting("the world is full", 2, 1, 2, outside=True),
        Excluded("round 2 was formed without this node"),
        Alarm(),
    ],
)
def test_a_node_waits_to_go_only_while_the_others_may_need_it(news: Any) -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, alone=False))
    agent.now += 60.0
    agent.take(news)
    assert agent.saves() is None


def test_a_second_signal_ends_a_node_that_waits_to_go() -> None:
    agent = _between_rounds()
    agent.take(LeaveRequested(15, alone=False))
    agent.now += 3.0
    agent.take(LeaveRequested(15, alone=False))
    assert agent.asked(StopWorkers) == [StopWorkers(0.0)]


def test_a_node_that_was_in_no_round_has_nothing_to_save() -> None:
    agent = InPlaceAgent()
    agent.take(ForkServerReady())
    agent.take(Prepare())
    agent.take(ready(0))
    agent.take(ready(1))
    agent.take(LeaveRequested(15, alone=True))
    assert not agent.told(Dismiss)
    assert agent.asked(Finish)


def test_a_node_leaves_although_its_workers_were_started_for_an_earlier_round() -> None:
    agent = InPlaceAgent().in_round()
    for local_rank in (0, 1):
        agent.take(left(1, local_rank, planned=True))
    agent.take(sealed(2))
    agent.take(LeaveRequested(15))
    for local_rank in (0, 1):
        agent.take(left(2, local_rank, planned=True))
    for local_rank in (0, 1):
        agent.take(WorkerExited(1, local_rank, 79, left_at_step=True))
    assert agent.asked(Finish)[0].exit_code == EXIT_LEFT


def test_a_worker_that_does_not_end_when_it_is_dismissed_is_stopped() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(15))
    agent.take(left(1, 0, planned=True))
    agent.take(left(1, 1, planned=True))
    (alarm,) = (a for a in agent.asked(SetAlarm) if a.at < float("inf"))
    agent.now = alarm.at
    agent.take(Alarm())
    assert agent.asked(StopWorkers)


def after_training(*, replaced: bool = False) -> InPlaceAgent:
    """All workers could leave at a step in round 1; ``train`` has returned in round 2."""
    agent = InPlaceAgent().in_round()
    for local_rank in (0, 1):
        agent.take(hello(1, local_rank))
    agent.take(killed(1, 1) if replaced else Switch(1, broken=True, reason="node b lost"))
    agent.take(left(1, 0))
    agent.take(ready(1) if replaced else left(1, 1))
    agent.take(sealed(2))
    for local_rank in (0, 1):
        agent.take(returned(local_rank, 2))
    return agent


def test_after_training_workers_with_a_checkpointer_are_asked_to_leave_at_a_step() -> None:
    agent = after_training()
    agent.take(LeaveRequested(15))
    assert agent.told(Leave)
    assert not agent.asked(StopWorkers)


def test_a_worker_whose_checkpointer_is_closed_in_a_later_round_is_stopped_at_once() -> None:
    agent = after_training()
    agent.take(hello(1, 0, can=False))  # a worker says for which round it was started
    agent.take(LeaveRequested(15))
    assert agent.asked(StopWorkers)
    assert not agent.told(Leave)


def test_what_a_worker_has_said_does_not_hold_for_the_one_that_replaces_it() -> None:
    agent = after_training(replaced=True)
    agent.take(LeaveRequested(15))
    assert agent.asked(StopWorkers)
    assert not agent.told(Leave)


def test_a_worker_that_was_started_before_the_first_round_can_say_that_it_can_leave() -> None:
    agent = InPlaceAgent()
    agent.take(ForkServerReady())
    agent.take(Prepare())
    for local_rank in (0, 1):
        agent.take(hello(0, local_rank))
        agent.take(ready(local_rank))
    agent.take(sealed(5))
    for local_rank in (0, 1):
        agent.take(returned(local_rank, 5))
    agent.take(LeaveRequested(15))
    assert agent.told(Leave)


JOINS = Switch(1, broken=False, reason="node c joins", grows=True)
GOES = Switch(1, broken=False, reason="node b was asked to leave")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((JOINS, GOES), "node b was asked to leave"),
        ((JOINS, Switch(1, broken=True, reason="node b lost")), "node b lost"),
        ((JOINS, LeaveRequested(15)), "the node was asked to leave"),
        ((JOINS, LeaveRequested(15), GOES), "the node was asked to leave"),
    ],
)
def test_what_takes_the_place_of_a_planned_change_is_why_the_round_is_left(
    events: tuple[Any, ...], told: str
) -> None:
    agent = InPlaceAgent().in_round()
    for event in events:
        agent.take(event)
    agent.take(left(1, 0, planned=True))
    agent.take(left(1, 1, planned=True))
    (said,) = agent.said(LeftRound)
    assert said.fault.reason == told
