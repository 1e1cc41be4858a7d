"""The lifecycles of an agent, in place and with workers started for each round, as tables."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.hang_detection import StepOverdue
from elastic_runtime.agent.lifecycle.lifecycle_state import Phase, WorkerPhase
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    EnterRound,
    Finish,
    ForkServerExited,
    ForkServerReady,
    ForwardSignal,
    HostStore,
    LeaveRequested,
    LifecycleEvent,
    SetAlarm,
    StartForkServer,
    StartForNextRound,
    StartWorkers,
    StopWorkers,
    TellPeople,
    TellRendezvous,
    TellWorkers,
    WorkerExited,
    WorkerMessage,
    WorkerSaid,
)
from elastic_runtime.clock import NEVER
from elastic_runtime.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_LEFT,
    EXIT_STORE_UNREACHABLE,
    EXIT_USAGE,
)
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.messages import Change, Dismiss, Interrupt, Leave
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
    RecoversInPlace,
    TrainReturned,
    WorkersAvailable,
)
from elastic_runtime.rendezvous.core.notices import (
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Prepare,
    Sealed,
    StoreState,
    StoreTimeout,
    Surveyed,
    Switch,
    Waiting,
)
from tests.unit.agent.lifecycle.agents import (
    BREAKS,
    SETTINGS,
    Walk,
    answered,
    can_leave,
    ended_by_us,
    failed,
    hello,
    in_round,
    killed,
    left,
    left_at_step,
    make_round,
    ready,
    returned,
    running,
    sealed,
    trained,
    with_server,
)

JOINS = Switch(1, broken=False, reason="node c joins", grows=True)
GOES = Switch(1, broken=False, reason="node b was asked to leave")
ONE_WORKER = replace(SETTINGS, workers=1)


def planned(number: int) -> tuple[WorkerSaid, ...]:
    """Both workers leave a round at the step that was agreed on."""
    return tuple(left(number, local_rank, planned=True) for local_rank in (0, 1))


def broken() -> tuple[WorkerSaid, ...]:
    """Both workers leave the first round, which is broken."""
    return left(1, 0), left(1, 1)


def all_returned(number: int) -> tuple[WorkerSaid, ...]:
    return returned(0, number), returned(1, number)


def test_the_first_round_is_entered_once_all_workers_have_come_to_run() -> None:
    agent = Walk(ForkServerReady())
    assert [type(a) for a in agent.play(sealed(1)).actions][-1] is StartWorkers
    agent.play(ready(1))
    assert agent.said(RecoversInPlace)
    assert agent.asked(HostStore) == [HostStore(4000)]
    assert not agent.asked(EnterRound)
    agent.play(ready(0))
    assert agent.one(EnterRound).local_ranks == (0, 1)


def test_a_killed_worker_is_replaced_while_the_other_goes_on() -> None:
    agent = in_round(killed(0))
    assert agent.told(Interrupt)[0].local_ranks == (1,)
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]
    assert not agent.said(LeftRound)
    agent.play(left(1, 1))
    said = agent.one_said(LeftRound)
    assert (said.fault.kind, said.stays, said.workers) == (KILLED, True, 1)
    agent.play(sealed(2, workers=1))
    assert agent.one(EnterRound).local_ranks == (1,)
    agent.play(ready(0))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]
    agent.play(Switch(2, broken=False, reason="a worker is back"))
    assert agent.told(Change)[0].message.round == 2
    agent.play(left(2, 1, planned=True))
    assert agent.one_said(LeftRound).workers == 2
    # The one that was in a round before keeps its place before the newcomer, also later.
    for number in (3, 4):
        agent.play(sealed(number))
        assert agent.one(EnterRound).local_ranks == (1, 0)
        agent.play(Switch(number, broken=False, reason="node c joins"), *planned(number))


def test_a_node_with_too_few_workers_waits_for_their_replacements() -> None:
    agent = in_round(killed(0), left(1, 1), settings=replace(SETTINGS, min_workers=2))
    assert agent.one_said(LeftRound).workers == 0
    agent.play(ready(0))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]


def test_an_error_that_only_echoes_a_peer_says_so() -> None:
    agent = in_round(left(1, 0))
    assert agent.told(Interrupt)[0].local_ranks == (1,)
    agent.play(left(1, 1))
    said = agent.one_said(LeftRound)
    assert said.fault.consequence
    assert said.workers == 2


def test_a_new_node_has_its_workers_ready_before_it_is_taken_in() -> None:
    agent = Walk()
    assert agent.one(StartForkServer)
    assert not agent.said(Join), "its workers cannot start at once"
    agent.play(ForkServerReady())
    assert agent.said(Join)
    agent.play(Prepare())
    assert agent.asked(StartForNextRound) == [StartForNextRound((0, 1))]
    agent.play(ready(0), ready(1))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]
    agent.play(sealed(5))
    assert agent.asked(EnterRound)


def test_nobody_is_taken_in_once_training_is_over() -> None:
    """The order may be written while the workers return: they end well in spite of it."""
    agent = in_round(trained(0, 1))
    assert agent.said(TrainReturned) == [TrainReturned(1)]
    saw = [JOINS, trained(1, 1), JOINS, returned(0, 1), JOINS, returned(1, 1), JOINS]
    for event in (*saw, WorkerExited(1, 0, 0), JOINS):
        agent.play(event)
        assert not agent.actions
    agent.play(WorkerExited(1, 1, 0))
    assert agent.said(Done) == [Done(1)]
    agent.play(JOINS)
    assert not agent.actions
    agent.play(Switch(1, broken=True, reason="node c was lost"))
    assert agent.said(LeftRound)
    assert agent.asked(StartForNextRound)


def test_an_order_to_grow_is_void_once_all_have_come_to_the_end() -> None:
    """Nobody reads at which step the world is to change: that must not end the last save."""
    agent = in_round(JOINS)
    assert agent.told(Change)
    (alarm,) = agent.asked(SetAlarm)
    agent.play(trained(0, 1))
    assert agent.asked(SetAlarm) == [SetAlarm(NEVER)]
    assert alarm.at < NEVER


def test_who_is_asked_to_leave_at_the_end_has_its_time() -> None:
    agent = in_round(LeaveRequested(15), trained(0, 1))
    assert agent.said(TrainReturned)
    assert not agent.asked(SetAlarm)


def test_the_end_of_a_broken_round_is_not_told() -> None:
    agent = in_round(killed(1), trained(0, 1))
    assert not agent.actions


def test_a_failure_after_the_end_of_training_starts_all_anew() -> None:
    agent = in_round(*all_returned(1), WorkerExited(1, 0, 0), killed(1))
    assert agent.one_said(LeftRound).workers == 0
    assert agent.asked(StartForNextRound) == [StartForNextRound((0, 1))]


def test_a_round_is_not_left_while_a_worker_that_has_returned_still_runs() -> None:
    agent = in_round(returned(0, 1), killed(1))
    assert not agent.said(LeftRound)
    assert agent.asked(StopWorkers)


def test_a_peer_on_the_same_node_that_dies_late_spoils_the_end() -> None:
    agent = in_round(killed(1), returned(0, 1))
    assert not agent.said(LeftRound)
    agent.play(WorkerExited(1, 0, 0), killed(1))  # its replacement was told to stop as well
    assert not agent.said(Done)
    assert agent.one_said(LeftRound).fault.kind == KILLED
    assert agent.asked(StartForNextRound) == [StartForNextRound((0, 1))]


def test_a_node_that_started_anew_hears_of_the_next_break_as_well() -> None:
    agent = in_round(settings=ONE_WORKER)
    for number in (1, 2):
        agent.play(returned(0, number), replace(BREAKS, round=number))
        assert agent.asked(StopWorkers), number
        agent.play(WorkerExited(number, 0, 0))
        assert agent.said(LeftRound), number
        agent.play(ready(0), sealed(number + 1, workers=1))
        assert agent.asked(EnterRound)


def test_a_replacement_that_never_comes_to_run_ends_the_node() -> None:
    agent = in_round(killed(0), left(1, 1), sealed(2, workers=1), killed(0), killed(0))
    assert agent.asked(StartForNextRound)
    agent.play(killed(0))
    assert agent.asked(StopWorkers)
    agent.play(WorkerExited(2, 1, -15))
    assert agent.one(Finish).exit_code == EXIT_FAILED


def test_a_worker_that_died_between_two_rounds_is_not_waited_for() -> None:
    agent = in_round(BREAKS, *broken(), killed(1))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(1)]
    agent.play(sealed(2, workers=2))
    said = agent.one_said(LeftRound)
    assert (said.round, said.workers) == (2, 1)
    agent.play(sealed(3, workers=1))
    assert agent.one(EnterRound).local_ranks == (0,)


def test_a_node_whose_fork_server_died_leaves_at_once_and_comes_back_when_it_has_workers() -> None:
    agent = in_round(with_server(0), with_server(1))
    assert agent.one_said(LeftRound).workers == 0
    assert agent.state.ranks_in(WorkerPhase.STARTING) == (0, 1)
    agent.play(ForkServerExited("signal 9"))
    assert agent.asked(StartForkServer)
    # That the next ones end as well, each time, is no failure of the script's start.
    for _ in range(2):
        for local_rank in (0, 1):
            agent.play(with_server(local_rank))
            assert agent.asked(StartForNextRound) == [StartForNextRound((local_rank,))]
        agent.play(ForkServerExited("signal 9"))
    agent.play(ForkServerReady(), ready(0), ready(1))
    assert agent.said(WorkersAvailable) == [WorkersAvailable(2)]


def refused(number: int, local_rank: int) -> WorkerExited:
    reason = f"worker {local_rank} cannot be started: this machine lacks the resources for it"
    fault = FaultReport(number, START, reason, signature=LACKS_RESOURCES)
    return WorkerExited(number, local_rank, 127, fault=fault)


def test_a_replacement_that_has_no_room_ends_no_survivor() -> None:
    agent = in_round(killed(1), left(1, 0), sealed(2, workers=1))
    for _ in range(5):
        agent.play(refused(2, 1))
        assert agent.asked(StartForNextRound) == [StartForNextRound((1,))]
        assert not agent.asked(Finish)
    assert agent.state.ranks_in(WorkerPhase.IN_ROUND) == (0,)
    agent.play(returned(0, 2), refused(2, 1))
    assert agent.state.ranks_in(WorkerPhase.RETURNED) == (0,)
    assert [type(action) for action in agent.actions] == [TellPeople]
    agent.play(WorkerExited(1, 0, 0))
    assert agent.said(Done)


def test_a_node_that_has_no_room_for_any_worker_leaves_the_others() -> None:
    agent = in_round(killed(0), killed(1))
    assert agent.state.phase is Phase.WAITING
    agent.play(refused(1, 0))
    assert agent.one(Finish).exit_code == EXIT_FAILED
    assert agent.one(Finish).message.startswith("worker 0 cannot be started: this machine lacks")


def test_ranks_that_all_wait_for_each_other_are_interrupted() -> None:
    agent = in_round(StepOverdue(61.0, 30.0), answered(0, True, "a"), answered(1, True, "a"))
    agent.now += 1.0
    agent.play(Surveyed(1, ()), StepOverdue(62.0, 30.0))
    assert agent.told(Interrupt)
    agent.play(*broken())
    assert agent.one_said(LeftRound).fault.signature == "hang"


def test_the_end_does_not_wait_for_a_replacement_that_is_in_no_round() -> None:
    agent = in_round(
        killed(1), left(1, 0), sealed(2, workers=1), returned(0, 2), WorkerExited(1, 0, 0)
    )
    assert agent.said(Done)
    agent.play(ready(1))
    assert not agent.actions


@pytest.mark.parametrize("event", [LeaveRequested(15), Switch(2, False, "node b was asked")])
@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.READY])
def test_who_finishes_its_script_is_asked_to_leave_whatever_its_replacement_does(
    event: Any, phase: WorkerPhase
) -> None:
    """It may hold the last steps; the replacement, which is in no round, holds nothing."""
    agent = in_round(hello(1, 0), killed(1), left(1, 0), sealed(2, workers=1), returned(0, 2))
    if phase is WorkerPhase.READY:
        agent.play(ready(1))
    agent.play(event)
    (leave,) = agent.told(Leave)
    assert leave.local_ranks == (0,)
    ended = [one.local_ranks for one in (*agent.asked(StopWorkers), *agent.told(Dismiss))]
    assert ended == [(1,)]


def test_ranks_that_do_not_agree_in_time_are_interrupted() -> None:
    agent = in_round(JOINS, Alarm())
    assert agent.told(Interrupt)


def test_a_worker_that_ends_early_with_code_0_has_failed() -> None:
    agent = in_round(WorkerExited(1, 0, 0), left(1, 1))
    assert "exit code 0" in agent.one_said(LeftRound).fault.reason


def test_a_broken_round_is_left_without_ending_a_process() -> None:
    agent = in_round(BREAKS)
    assert agent.told(Interrupt)[0].local_ranks == (0, 1)
    assert not agent.asked(StopWorkers)
    agent.play(left(1, 0))
    assert not agent.said(LeftRound)
    agent.play(left(1, 1))
    assert agent.one_said(LeftRound).fault.reason == "node b lost"
    assert agent.state.phase is Phase.WAITING


def test_an_excluded_node_asks_in_again_with_the_same_processes() -> None:
    agent = in_round(Excluded("the job went on without this node"))
    assert agent.told(Interrupt)
    agent.play(*broken())
    assert agent.said(Join) == [Join(workers=2)]
    assert not agent.asked(StartForNextRound)


@pytest.mark.parametrize("ended", [False, True])
def test_a_node_that_is_excluded_at_its_end_joins_as_a_new_one(ended: bool) -> None:
    """It was suspended, say: the others have begun again, and it would wait for ever."""
    agent = in_round(returned(0, 1), settings=ONE_WORKER)
    if ended:
        agent.play(WorkerExited(1, 0, 0))
    agent.play(Excluded("the job went on without this node"))
    if not ended:
        assert agent.asked(StopWorkers)
        agent.play(WorkerExited(1, 0, -15))
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]
    assert not agent.said(Join)  # with nothing to offer yet
    agent.play(ready(0))
    assert agent.said(Join) == [Join(workers=1)]


def test_a_worker_that_returns_from_a_broken_round_does_not_end_it_well() -> None:
    # A peer died when all ranks had returned: this one no longer notices, but the others do.
    agent = in_round(BREAKS, returned(0, 1), settings=ONE_WORKER)
    assert agent.asked(StopWorkers)
    agent.play(WorkerExited(1, 0, 0))
    assert not agent.said(Done)
    assert agent.one_said(LeftRound).stays
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]


# How such a node leaves the job


@pytest.mark.parametrize("earlier", [(), (*planned(1), sealed(2))])
def test_a_node_that_is_asked_to_leave_leaves_at_a_common_step(earlier: tuple[Any, ...]) -> None:
    """Also if its workers were started for an earlier round."""
    agent = in_round(*earlier, LeaveRequested(signal.SIGUSR1))
    assert agent.one(ForwardSignal).signum == signal.SIGUSR1, "for a handler of the script's"
    assert agent.told(Change)[0].message.goes
    agent.play(*planned(2 if earlier else 1))
    assert not agent.one_said(LeftRound).stays
    assert agent.told(Dismiss)
    agent.play(left_at_step(0), left_at_step(1))
    assert agent.one(Finish).exit_code == EXIT_LEFT


def _between_rounds(*events: Any) -> Walk:
    return in_round(BREAKS, *broken(), *events)


def _waits_to_go(seconds: float = 0.0, **asked: bool) -> Walk:
    """It was asked to leave between two rounds, so long ago."""
    agent = _between_rounds(LeaveRequested(15, **asked))
    agent.now += seconds
    return agent


def test_the_last_node_saves_what_only_it_remembers_before_it_leaves() -> None:
    agent = _waits_to_go(alone=True)
    assert agent.saves() == 0
    assert not agent.asked(Finish)
    agent.play(WorkerExited(1, 1, 0), left_at_step(0))
    (finish,) = agent.asked(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_LEFT, "stopped on request")


def _goes_by_way_of_round_2(agent: Walk) -> None:
    """All ranks of the next round hear that the node goes; then it does."""
    assert not agent.told(Dismiss)
    agent.play(sealed(2))
    assert agent.asked(EnterRound)
    assert agent.said(Leaving)
    assert agent.told(Change) == [TellWorkers(Change(2, "this node was asked to leave", goes=True))]
    agent.play(*planned(2))
    assert not agent.one_said(LeftRound).stays
    assert agent.saves() is None


def test_a_node_that_is_asked_between_two_rounds_goes_by_way_of_the_next_one() -> None:
    agent = _waits_to_go()
    assert not agent.said(Leaving)  # only who stays in is in the next round
    _goes_by_way_of_round_2(agent)


@pytest.mark.parametrize("late", [0, 1])
def test_a_node_of_which_its_ranks_have_said_that_it_stays_keeps_their_word(late: int) -> None:
    agent = in_round(
        GOES,
        LeaveRequested(15),
        left(1, 0, planned=True, released=0 != late),
        left(1, 1, planned=True, released=1 != late),
    )
    said = agent.one_said(LeftRound)
    assert (said.stays, said.workers) == (True, 2)
    _goes_by_way_of_round_2(agent)


def _breaks_after_it_was_asked(*remember: int) -> Walk:
    """The round breaks before its ranks could agree on a step at which they leave it."""
    agent = in_round(LeaveRequested(15))
    agent.now += 20.0  # a step may be long
    forget = {0, 1} - {*remember}
    return agent.play(*map(killed, forget), *(left(1, local_rank) for local_rank in remember))


@pytest.mark.parametrize("remember", [(0, 1), (0,)])
def test_who_was_asked_in_a_round_that_breaks_leaves_by_the_next(remember: tuple[int, ...]) -> None:
    agent = _breaks_after_it_was_asked(*remember)
    said = agent.one_said(LeftRound)
    assert (said.stays, said.workers) == (True, len(remember))
    assert not agent.asked(StartForNextRound)
    agent.play(sealed(2, workers=len(remember)))
    assert agent.told(Change)[0].message.goes
    for local_rank in remember:
        agent.play(left(2, local_rank, planned=True, released=True))
    assert not agent.one_said(LeftRound).stays
    assert agent.saves() is None


def test_it_saves_by_itself_if_no_other_round_comes() -> None:
    agent = _breaks_after_it_was_asked(0, 1)
    agent.now = agent.asked(SetAlarm)[-1].at
    agent.play(Alarm(alone=True))
    assert agent.saves() == 0


def test_it_does_not_wait_for_longer_than_its_grace() -> None:
    agent = _breaks_after_it_was_asked(0, 1)
    agent.now += 60.0
    agent.play(Alarm(leads=True))
    assert agent.saves() is None


def test_it_goes_at_once_with_no_worker_that_remembers_anything() -> None:
    agent = _breaks_after_it_was_asked()
    assert not agent.one_said(LeftRound).stays
    assert agent.one(Finish).exit_code == EXIT_LEFT


def test_a_node_whose_going_all_ranks_knew_waits_for_nobody_though_the_round_breaks() -> None:
    agent = in_round(
        LeaveRequested(15),
        left(1, 0, planned=True, released=True),
        Switch(1, broken=True, reason="worker 3 was killed on b"),
        left(1, 1, planned=True, released=True),
    )
    assert not agent.one_said(LeftRound).stays


def test_a_node_that_waits_to_go_saves_as_soon_as_it_is_the_last_one() -> None:
    agent = _waits_to_go()
    agent.now = agent.one(SetAlarm).at
    agent.play(Alarm(alone=False))
    assert agent.one(SetAlarm).at > agent.now
    agent.play(Alarm(alone=True))
    assert agent.saves() == 0


@pytest.mark.parametrize(
    ("seconds", "leads", "news", "saves"),
    [
        (7.0, True, {"alone": True}, 0),  # the leader waits longer: so that one is the last
        # Nobody waits long for a round that no store can form.
        (1.0, True, {"served": False}, None),
        (1.0, False, {"served": False}, None),
    ],
)
def test_how_long_a_node_waits_to_go(
    seconds: float, leads: bool, news: dict[str, bool], saves: int | None
) -> None:
    agent = _waits_to_go(seconds, leads=leads)
    agent.play(Alarm(leads=leads))
    assert not agent.told(Dismiss)
    agent.play(Alarm(leads=leads, **news))
    assert agent.saves() == saves


@pytest.mark.parametrize(
    "news",
    [
        Waiting("the world is full", 2, 1, 2, outside=True),
        Excluded("round 2 was formed without this node"),
        Alarm(),
    ],
)
def test_a_node_waits_to_go_only_while_the_others_may_need_it(news: Any) -> None:
    agent = _waits_to_go(60.0)
    agent.play(news)
    assert agent.saves() is None


def test_a_second_signal_ends_a_node_that_waits_to_go() -> None:
    agent = _waits_to_go(3.0)
    agent.play(LeaveRequested(15))
    assert agent.asked(StopWorkers) == [StopWorkers(0.0)]


def test_a_node_that_was_in_no_round_has_nothing_to_save() -> None:
    agent = Walk(ForkServerReady(), Prepare(), ready(0), ready(1), LeaveRequested(15, alone=True))
    assert not agent.told(Dismiss)
    assert agent.asked(Finish)


def test_a_worker_that_does_not_end_when_it_is_dismissed_is_stopped() -> None:
    agent = in_round(LeaveRequested(15), *planned(1))
    (alarm,) = (a for a in agent.asked(SetAlarm) if a.at < float("inf"))
    agent.now = alarm.at
    agent.play(Alarm())
    assert agent.asked(StopWorkers)


def after_training(*events: Any, replaced: bool = False) -> Walk:
    """All workers could leave at a step in round 1; ``train`` has returned in round 2."""
    return in_round(
        hello(1, 0),
        hello(1, 1),
        killed(1) if replaced else BREAKS,
        left(1, 0),
        ready(1) if replaced else left(1, 1),
        sealed(2),
        *all_returned(2),
        *events,
    )


HELLOS = hello(0, 0), ready(0), hello(0, 1), ready(1)


@pytest.mark.parametrize(
    ("agent", "can"),
    [
        (after_training(), True),
        (Walk(ForkServerReady(), Prepare(), *HELLOS, sealed(5), *all_returned(5)), True),
        # A checkpointer that is closed in a later round: a worker says for which it was started.
        (after_training(hello(1, 0, can=False)), False),
        # What a worker has said does not hold for the one that replaces it.
        (after_training(replaced=True), False),
    ],
)
def test_after_training_who_can_still_leave_at_a_step_is_asked_to(agent: Walk, can: bool) -> None:
    agent.play(LeaveRequested(15))
    assert (bool(agent.told(Leave)), bool(agent.asked(StopWorkers))) == (can, not can)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((JOINS, GOES), "node b was asked to leave"),
        ((JOINS, BREAKS), "node b lost"),
        ((JOINS, LeaveRequested(15)), "the node was asked to leave"),
        ((JOINS, LeaveRequested(15), GOES), "the node was asked to leave"),
    ],
)
def test_what_takes_the_place_of_a_planned_change_is_why_the_round_is_left(
    events: tuple[Any, ...], told: str
) -> None:
    assert in_round(*events, *planned(1)).one_said(LeftRound).fault.reason == told


# Workers that are started for each round, and random walks


ENDED_WELL = WorkerExited(1, 0, 0), WorkerExited(1, 1, 0)


@pytest.mark.parametrize(
    ("events", "code", "told"),
    [
        ([Conflict("another job")], EXIT_USAGE, "another job"),
        ([StoreTimeout("no answer")], EXIT_STORE_UNREACHABLE, "no answer"),
        ([LeaveRequested(2)], EXIT_LEFT, "stopped on request"),
        ([LeaveRequested(2)] * 2, EXIT_LEFT, "stopped on request"),
    ],
)
def test_what_ends_a_node_that_runs_nothing(events: list[Any], code: int, told: str) -> None:
    finish = Walk(ForkServerReady(), *events).state.finish
    assert finish and (finish.exit_code, finish.message) == (code, told)


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
    start = walk.one(StartWorkers)
    assert (start.round.number, start.group_rank) == (2, 0)
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


def test_each_event_has_a_row() -> None:
    """One that nobody handles would end the agent."""
    kinds = {*get_args(LifecycleEvent), *get_args(WorkerMessage)} - {WorkerSaid}
    assert lifecycle_step.HANDLERS.keys() == kinds


@pytest.mark.parametrize(("signum", "told"), [(signal.SIGUSR1, True), (15, False), (2, False)])
def test_a_script_that_leaves_by_itself_gets_its_own_signals(signum: int, told: bool) -> None:
    walk = can_leave(LeaveRequested(signum))
    assert walk.one(TellWorkers)
    assert bool(walk.asked(ForwardSignal)) == told


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


TIMES = SETTINGS.timeouts


@pytest.mark.parametrize(
    ("walk", "signum", "grace"),
    [
        (running(LeaveRequested(signal.SIGUSR1)), signal.SIGUSR1, TIMES.grace),
        (running(JOINS), 15, TIMES.grace),
        # A worker that makes no more steps is not asked to leave at one.
        (can_leave(hello(1, 1, can=False), JOINS), 15, TIMES.grace),
        # Workers that do not leave in time, or whose round breaks.
        (can_leave(JOINS, Alarm()), 15, TIMES.broken_grace),
        (can_leave(JOINS, BREAKS), 15, TIMES.broken_grace),
        (running(Fenced("no contact")), 15, TIMES.broken_grace),
    ],
)
def test_how_workers_are_stopped(walk: Walk, signum: int, grace: float) -> None:
    assert not walk.asked(TellWorkers)
    assert (walk.one(StopWorkers).signum, walk.one(StopWorkers).grace) == (signum, grace)


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


@pytest.mark.parametrize(
    ("patient", "same", "earnest"),
    [
        (False, [(15, 101.9)], (15, 102.5)),
        (False, [(15, 101.9)], (2, 101.9)),
        # At the end of the time that preemption leaves, for example; Slurm kills what is left then.
        (True, [(15, 130.0), (signal.SIGUSR1, 130.0)], (2, 131.0)),
    ],
)
def test_who_is_asked_again_in_earnest_ends_at_once(
    patient: bool, same: list[tuple[int, float]], earnest: tuple[int, float]
) -> None:
    """The same signal shortly after is the same request; Ctrl-C alone hurries a patient node."""
    walk = can_leave()
    walk.state = replace(walk.state, settings=replace(walk.state.settings, patient=patient))
    walk.play(LeaveRequested(15), now=100.0)
    for signum, now in same:
        walk.play(LeaveRequested(signum), now=now)
        assert not walk.actions
    walk.play(LeaveRequested(earnest[0]), now=earnest[1])
    assert walk.one(StopWorkers).grace == 0.0
    walk.play(killed(0), killed(1))
    assert walk.one(Finish).exit_code == 128 + earnest[0]


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


def test_news_of_an_older_round_is_ignored() -> None:
    walk = running()
    assert walk.play(killed(0, number=7)).actions == ()
    assert walk.play(Switch(7, True, "old")).actions == ()
    assert walk.state.phase is Phase.RUNNING


def test_a_node_that_was_asked_to_leave_waits_for_nobody() -> None:
    few = Waiting("waiting for at least 2 nodes", 1, 2, 2)
    assert isinstance(running(few).one(TellPeople).event, JobWaiting)
    assert not running(LeaveRequested(15), few).asked(TellPeople)


# How a round ends on this node, and how its agent does


def test_the_cause_is_reported_and_not_its_echo() -> None:
    echo = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    walk = running(failed(0, echo), failed(1, "ValueError: the cause"))
    assert walk.one_said(LeftRound).fault.signature == "ValueError: the cause"


def test_what_fails_once_the_node_was_asked_to_leave_is_no_failure_of_the_script() -> None:
    walk = can_leave(LeaveRequested(signal.SIGTERM))
    text = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."
    walk.play(failed(0, text), ended_by_us(1))
    assert (walk.one_said(LeftRound).fault.kind, walk.one_said(LeftRound).stays) == (ASKED, False)


def test_the_end_of_the_job_ends_the_agent_with_its_code() -> None:
    walk = running(*ENDED_WELL)
    assert walk.one_said(Done).round == 1
    assert not walk.said(LeftRound)
    assert walk.state.phase is Phase.DONE
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
