"""The lifecycle of an agent whose workers keep their process, as tables of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.agent.lifecycle.hang_detection import StepOverdue
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    Phase,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    EnterRound,
    Finish,
    ForkServerExited,
    ForkServerReady,
    HostStore,
    LeaveRequested,
    SetAlarm,
    StartForkServer,
    StartForNextRound,
    StartWorkers,
    StopWorkers,
    TellPeople,
    WorkerExited,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.errors import EXIT_FAILED
from elastic_runtime.protocol.messages import (
    Change,
    Dismiss,
    Interrupt,
    Leave,
)
from elastic_runtime.protocol.records import (
    KILLED,
    LACKS_RESOURCES,
    START,
    FaultReport,
)
from elastic_runtime.rendezvous.core.membership_events import (
    Done,
    Join,
    LeftRound,
    RecoversInPlace,
    TrainReturned,
    WorkersAvailable,
)
from elastic_runtime.rendezvous.core.notices import (
    Prepare,
    Surveyed,
    Switch,
)
from tests.unit.agent.lifecycle.in_place_agent import (
    SETTINGS,
    InPlaceAgent,
    answered,
    hello,
    killed,
    left,
    ready,
    returned,
    sealed,
    trained,
    with_server,
)


def test_the_first_round_is_entered_once_all_workers_have_come_to_run() -> None:
    agent = InPlaceAgent()
    agent.take(ForkServerReady())
    assert [type(a) for a in agent.take(sealed(1))][-1] is StartWorkers
    agent.take(ready(1))
    assert agent.said(RecoversInPlace)
    assert agent.asked(HostStore) == [HostStore(4000)]
    assert not agent.asked(EnterRound)
    agent.take(ready(0))
    (enter,) = agent.asked(EnterRound)
    assert enter.local_ranks == (0, 1)


def test_a_killed_worker_is_replaced_while_the_other_goes_on() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(killed(1, 0))
    assert agent.told(Interrupt)[0].local_ranks == (1,)
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]
    assert not agent.said(LeftRound)
    agent.take(left(1, 1))
    (said,) = agent.said(LeftRound)
    assert (said.fault.kind, said.stays, said.workers) == (KILLED, True, 1)
    agent.take(sealed(2, workers=1))
    (enter,) = agent.asked(EnterRound)
    assert enter.local_ranks == (1,)
    agent.take(ready(0))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]
    agent.take(Switch(2, broken=False, reason="a worker is back"))
    assert agent.told(Change)[0].message.round == 2
    agent.take(left(2, 1, planned=True))
    assert agent.said(LeftRound)[0].workers == 2
    agent.take(sealed(3))
    # The one that was in a round before keeps its place before the newcomer.
    assert agent.asked(EnterRound)[0].local_ranks == (1, 0)


def test_a_node_with_too_few_workers_waits_for_their_replacements() -> None:
    agent = InPlaceAgent(replace(SETTINGS, min_workers=2))
    agent.in_round()
    agent.take(killed(1, 0))
    agent.take(left(1, 1))
    assert agent.said(LeftRound)[0].workers == 0
    agent.take(ready(0))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]


def test_a_node_whose_only_worker_died_stays_out_until_it_is_replaced() -> None:
    agent = InPlaceAgent(replace(SETTINGS, workers=1))
    for event in (ForkServerReady(), sealed(1, workers=1), ready(0)):
        agent.take(event)
    agent.take(killed(1, 0))
    assert agent.said(LeftRound)[0].workers == 0
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]
    agent.take(ready(0))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(1)]


def test_an_error_that_only_echoes_a_peer_says_so() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(left(1, 0))
    assert agent.told(Interrupt)[0].local_ranks == (1,)
    agent.take(left(1, 1))
    (said,) = agent.said(LeftRound)
    assert said.fault.consequence
    assert said.workers == 2


def test_a_new_node_has_its_workers_ready_before_it_asks_in() -> None:
    agent = InPlaceAgent()
    agent.take(ForkServerReady())
    assert agent.said(Join)
    agent.take(Prepare())
    assert agent.asked(StartForNextRound) == [StartForNextRound((0, 1))]
    agent.take(ready(0))
    agent.take(ready(1))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]
    agent.take(sealed(5))
    assert agent.asked(EnterRound)


def test_the_job_ends_well_when_all_have_returned() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(returned(0, 1))
    agent.take(returned(1, 1))
    agent.take(WorkerExited(1, 0, 0))
    assert not agent.said(Done)
    agent.take(WorkerExited(1, 1, 0))
    assert agent.said(Done) == [Done(1)]


def test_nobody_is_taken_in_once_training_is_over() -> None:
    """The order may be written while the workers return: they end well in spite of it."""
    grow = Switch(1, broken=False, reason="node b joins", grows=True)
    agent = InPlaceAgent().in_round()
    agent.take(trained(0, 1))
    assert agent.said(TrainReturned) == [TrainReturned(1)]
    saw = [grow, trained(1, 1), grow, returned(0, 1), grow, returned(1, 1), grow]
    for event in (*saw, WorkerExited(1, 0, 0), grow):
        agent.take(event)
        assert not agent.actions
    agent.take(WorkerExited(1, 1, 0))
    assert agent.said(Done) == [Done(1)]
    agent.take(grow)
    assert not agent.actions
    agent.take(Switch(1, broken=True, reason="node c was lost"))
    assert agent.said(LeftRound)
    assert agent.asked(StartForNextRound)


def test_an_order_to_grow_is_void_once_all_have_come_to_the_end() -> None:
    """Nobody reads at which step the world is to change: that must not end the last save."""
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=False, reason="node b joins", grows=True))
    assert agent.told(Change)
    (alarm,) = agent.asked(SetAlarm)
    agent.take(trained(0, 1))
    assert agent.asked(SetAlarm) == [SetAlarm(NEVER)]
    assert alarm.at < NEVER


def test_who_is_asked_to_leave_at_the_end_has_its_time() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(15))
    agent.take(trained(0, 1))
    assert agent.said(TrainReturned)
    assert not agent.asked(SetAlarm)


def test_the_end_of_a_broken_round_is_not_told() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(killed(1, 1))
    agent.take(trained(0, 1))
    assert not agent.actions


def test_a_failure_after_the_end_of_training_starts_all_anew() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(returned(0, 1))
    agent.take(returned(1, 1))
    agent.take(WorkerExited(1, 0, 0))
    agent.take(killed(1, 1))
    assert agent.said(LeftRound)[0].workers == 0
    assert agent.asked(StartForNextRound) == [StartForNextRound((0, 1))]


def test_a_peer_on_the_same_node_that_dies_late_spoils_the_end() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(killed(1, 1))
    agent.take(returned(0, 1))
    assert not agent.said(LeftRound)
    agent.take(WorkerExited(1, 0, 0))
    agent.take(killed(1, 1))  # its replacement was told to stop as well
    assert not agent.said(Done)
    assert agent.said(LeftRound)[0].fault.kind == KILLED
    assert agent.asked(StartForNextRound) == [StartForNextRound((0, 1))]


def test_a_node_that_started_anew_hears_of_the_next_break_as_well() -> None:
    agent = InPlaceAgent(replace(SETTINGS, workers=1))
    for event in (ForkServerReady(), sealed(1, workers=1), ready(0)):
        agent.take(event)
    for number in (1, 2):
        agent.take(returned(0, number))
        agent.take(Switch(number, broken=True, reason="worker 1 was killed on b"))
        assert agent.asked(StopWorkers), number
        agent.take(WorkerExited(number, 0, 0))
        assert agent.said(LeftRound), number
        agent.take(ready(0))
        agent.take(sealed(number + 1, workers=1))
        assert agent.asked(EnterRound)


def test_a_worker_that_ends_early_with_code_0_has_failed() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(WorkerExited(1, 0, 0))
    agent.take(left(1, 1))
    assert "exit code 0" in agent.said(LeftRound)[0].fault.reason


def test_a_replacement_that_never_comes_to_run_ends_the_node() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(killed(1, 0))
    agent.take(left(1, 1))
    agent.take(sealed(2, workers=1))
    agent.take(killed(1, 0))
    agent.take(killed(1, 0))
    assert agent.asked(StartForNextRound)
    agent.take(killed(1, 0))
    assert agent.asked(StopWorkers)
    agent.take(WorkerExited(2, 1, -15))
    assert agent.asked(Finish)[0].exit_code == EXIT_FAILED


def test_a_worker_that_died_between_two_rounds_is_not_waited_for() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason="node b lost"))
    agent.take(left(1, 0))
    agent.take(left(1, 1))
    agent.take(killed(1, 1))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(1)]
    agent.take(sealed(2, workers=2))
    (said,) = agent.said(LeftRound)
    assert (said.round, said.workers) == (2, 1)
    agent.take(sealed(3, workers=1))
    assert agent.asked(EnterRound)[0].local_ranks == (0,)


def test_a_node_whose_fork_server_died_leaves_at_once_and_comes_back_when_it_has_workers() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(with_server(1, 0))
    agent.take(with_server(1, 1))
    assert agent.said(LeftRound)[0].workers == 0
    assert agent.state.ranks_in(WorkerPhase.STARTING) == (0, 1)
    agent.take(ForkServerExited("signal 9"))
    assert agent.asked(StartForkServer)
    # That the next ones end as well, each time, is no failure of the script's start.
    for _ in range(2):
        for local_rank in (0, 1):
            agent.take(with_server(1, local_rank))
            assert agent.asked(StartForNextRound) == [StartForNextRound((local_rank,))]
        agent.take(ForkServerExited("signal 9"))
    agent.take(ForkServerReady())
    agent.take(ready(0))
    agent.take(ready(1))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]


def refused(number: int, local_rank: int) -> WorkerExited:
    reason = f"worker {local_rank} cannot be started: this machine lacks the resources for it"
    fault = FaultReport(number, START, reason, signature=LACKS_RESOURCES)
    return WorkerExited(number, local_rank, 127, fault=fault)


def test_a_replacement_that_has_no_room_ends_no_survivor() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(killed(1, 1))
    agent.take(left(1, 0))
    agent.take(sealed(2, workers=1))
    for _ in range(5):
        agent.take(refused(2, 1))
        assert agent.asked(StartForNextRound) == [StartForNextRound((1,))]
        assert not agent.asked(Finish)
    assert agent.state.ranks_in(WorkerPhase.IN_ROUND) == (0,)
    agent.take(returned(0, 2))
    agent.take(refused(2, 1))
    assert agent.state.ranks_in(WorkerPhase.RETURNED) == (0,)
    assert [type(action) for action in agent.actions] == [TellPeople]
    agent.take(WorkerExited(1, 0, 0))
    assert agent.said(Done)


def test_a_node_that_has_no_room_for_any_worker_leaves_the_others() -> None:
    agent = InPlaceAgent().in_round()
    for local_rank in (0, 1):
        agent.take(killed(1, local_rank))
    assert agent.state.phase is Phase.WAITING
    agent.take(refused(1, 0))
    (finish,) = agent.asked(Finish)
    assert finish.exit_code == EXIT_FAILED
    assert finish.message == "worker 0 cannot be started: this machine lacks the resources for it"


def test_ranks_that_all_wait_for_each_other_are_interrupted() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(StepOverdue(61.0, 30.0))
    agent.take(answered(0, True, "a", ""))
    agent.take(answered(1, True, "a", ""))
    agent.now += 1.0
    agent.take(Surveyed(1, ()))
    agent.take(StepOverdue(62.0, 30.0))
    assert agent.told(Interrupt)
    agent.take(left(1, 0))
    agent.take(left(1, 1))
    assert agent.said(LeftRound)[0].fault.signature == "hang"


def test_the_end_does_not_wait_for_a_replacement_that_is_in_no_round() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(killed(1, 1))
    agent.take(left(1, 0))
    agent.take(sealed(2, workers=1))
    agent.take(returned(0, 2))
    agent.take(WorkerExited(1, 0, 0))
    assert agent.said(Done)
    agent.take(ready(1))
    assert not agent.actions


@pytest.mark.parametrize("event", [LeaveRequested(15), Switch(2, False, "node b was asked")])
@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.READY])
def test_who_finishes_its_script_is_asked_to_leave_whatever_its_replacement_does(
    event: Any, phase: WorkerPhase
) -> None:
    """It may hold the last steps; the replacement, which is in no round, holds nothing."""
    agent = InPlaceAgent().in_round()
    agent.take(hello(1, 0))
    agent.take(killed(1, 1))
    agent.take(left(1, 0))
    agent.take(sealed(2, workers=1))
    agent.take(returned(0, 2))
    if phase is WorkerPhase.READY:
        agent.take(ready(1))
    agent.take(event)
    (leave,) = agent.told(Leave)
    assert leave.local_ranks == (0,)
    ended = [one.local_ranks for one in (*agent.asked(StopWorkers), *agent.told(Dismiss))]
    assert ended == [(1,)]
