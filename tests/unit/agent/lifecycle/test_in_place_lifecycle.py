"""The life of an agent whose workers keep their process, as tables of events and what follows."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    Asked,
    BootWorkers,
    ChangeWorkers,
    DismissWorkers,
    EnterWorkers,
    Finish,
    InterruptWorkers,
    LifecycleSettings,
    NoProgress,
    PassOn,
    Phase,
    Report,
    SayAvailable,
    SayDone,
    SayDrain,
    SayInPlace,
    SayJoin,
    SayLeft,
    Seat,
    ServerDied,
    ServerReady,
    SetAlarm,
    StartServer,
    StartWorkers,
    State,
    StopWorkers,
    WorkerExited,
    WorkerHeard,
    WorkerLeft,
    WorkerReady,
    WorkerReturned,
)
from elastic_runtime.errors import EXIT_FAILED, EXIT_LEFT
from elastic_runtime.protocol.records import (
    KILLED,
    NO_ROOM,
    START,
    FaultReport,
    Member,
    RoundRecord,
)
from elastic_runtime.rendezvous.core.notices import (
    Excluded,
    Prepare,
    Sealed,
    StoreState,
    Surveyed,
    Switch,
    Waiting,
)

SETTINGS = LifecycleSettings(workers=2)


def sealed(number: int, workers: int = 2, others: int = 1) -> Sealed:
    me = Member("me", "a", "127.0.0.1", workers, 1, 4000)
    rest = tuple(Member(f"n{i}", f"n{i}", "127.0.0.1", 2, 1, 4001 + i) for i in range(others))
    return Sealed(RoundRecord(number, "life", (me, *rest), 4000, "why"), 0)


class Life:
    """Feeds events to the lifecycle and remembers what it asked for last."""

    def __init__(self, settings: LifecycleSettings = SETTINGS) -> None:
        step = lifecycle_step.begin(settings)
        self.state: State = step.state
        self.actions = step.actions
        self.now = 100.0

    def take(self, event: Any) -> list[Any]:
        step = lifecycle_step.step(self.state, event, self.now)
        self.state, self.actions = step.state, step.actions
        return list(step.actions)

    def asked(self, kind: type) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kind)]

    def in_round(self) -> Life:
        """Brings two workers into round 1 by way of a plain start."""
        for event in (ServerReady(), StoreState(True), sealed(1), WorkerReady(0), WorkerReady(1)):
            self.take(event)
        assert self.state.seated(Seat.IN) == (0, 1)
        return self


def killed(number: int, local_rank: int) -> WorkerExited:
    fault = FaultReport(number, KILLED, f"worker {local_rank} was killed", rank=local_rank)
    return WorkerExited(number, local_rank, -9, fault=fault)


def with_server(number: int, local_rank: int) -> WorkerExited:
    gone = killed(number, local_rank)
    assert gone.fault is not None
    return replace(gone, fault=replace(gone.fault, signature=WITH_SERVER))


def left(
    number: int, local_rank: int, *, planned: bool = False, released: bool = True
) -> WorkerLeft:
    reason = "the connection to a peer is lost"
    return WorkerLeft(local_rank, number, 7, planned, reason, released)


def test_the_first_round_is_entered_once_all_workers_have_come_to_run() -> None:
    life = Life()
    life.take(ServerReady())
    assert [type(a) for a in life.take(sealed(1))][-1] is StartWorkers
    life.take(WorkerReady(1))
    assert life.asked(SayInPlace) == [SayInPlace(hosts=True)]
    assert not life.asked(EnterWorkers)
    life.take(WorkerReady(0))
    (enter,) = life.asked(EnterWorkers)
    assert enter.local_ranks == (0, 1)


def test_a_killed_worker_is_replaced_while_the_other_goes_on() -> None:
    life = Life().in_round()
    life.take(killed(1, 0))
    assert life.asked(InterruptWorkers)[0].local_ranks == (1,)
    assert life.asked(BootWorkers) == [BootWorkers((0,))]
    assert not life.asked(SayLeft)
    life.take(left(1, 1))
    (said,) = life.asked(SayLeft)
    assert (said.fault.kind, said.stays, said.workers) == (KILLED, True, 1)
    life.take(sealed(2, workers=1))
    (enter,) = life.asked(EnterWorkers)
    assert enter.local_ranks == (1,)
    life.take(WorkerReady(0))
    assert life.asked(SayAvailable) == [SayAvailable(2)]
    life.take(Switch(2, broken=False, reason="a worker is back"))
    assert life.asked(ChangeWorkers)[0].round == 2
    life.take(left(2, 1, planned=True))
    assert life.asked(SayLeft)[0].workers == 2
    life.take(sealed(3))
    # The one that was in a round before keeps its place before the newcomer.
    assert life.asked(EnterWorkers)[0].local_ranks == (1, 0)


def test_a_node_with_too_few_workers_waits_for_their_replacements() -> None:
    life = Life(replace(SETTINGS, min_workers=2))
    life.in_round()
    life.take(killed(1, 0))
    life.take(left(1, 1))
    assert life.asked(SayLeft)[0].workers == 0
    life.take(WorkerReady(0))
    assert life.asked(SayAvailable) == [SayAvailable(2)]


def test_a_node_whose_only_worker_died_stays_out_until_it_is_replaced() -> None:
    life = Life(replace(SETTINGS, workers=1))
    for event in (ServerReady(), sealed(1, workers=1), WorkerReady(0)):
        life.take(event)
    life.take(killed(1, 0))
    assert life.asked(SayLeft)[0].workers == 0
    assert life.asked(BootWorkers) == [BootWorkers((0,))]
    life.take(WorkerReady(0))
    assert life.asked(SayAvailable) == [SayAvailable(1)]


def test_an_error_that_only_echoes_a_peer_says_so() -> None:
    life = Life().in_round()
    life.take(left(1, 0))
    assert life.asked(InterruptWorkers)[0].local_ranks == (1,)
    life.take(left(1, 1))
    (said,) = life.asked(SayLeft)
    assert said.fault.consequence
    assert said.workers == 2


def test_a_broken_round_is_left_without_ending_a_process() -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason="node b lost"))
    assert life.asked(InterruptWorkers)[0].local_ranks == (0, 1)
    assert not life.asked(StopWorkers)
    life.take(left(1, 0))
    assert not life.asked(SayLeft)
    life.take(left(1, 1))
    assert life.asked(SayLeft)[0].fault.reason == "node b lost"
    assert life.state.phase is Phase.WAITING


def test_ranks_that_do_not_agree_in_time_are_interrupted() -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=False, reason="node c joins"))
    life.take(Alarm())
    assert life.asked(InterruptWorkers)


def test_a_node_that_is_asked_to_leave_leaves_at_a_common_step() -> None:
    life = Life().in_round()
    life.take(Asked(15))
    assert life.asked(ChangeWorkers)[0].goes
    life.take(left(1, 0, planned=True))
    life.take(left(1, 1, planned=True))
    (said,) = life.asked(SayLeft)
    assert not said.stays
    assert life.asked(DismissWorkers)
    life.take(WorkerExited(1, 0, 79, drained=True))
    life.take(WorkerExited(1, 1, 79, drained=True))
    assert life.asked(Finish)[0].exit_code == EXIT_LEFT


def test_a_handler_of_the_script_hears_of_the_signal_that_asks_the_node() -> None:
    life = Life().in_round()
    life.take(Asked(signal.SIGUSR1))
    assert life.asked(PassOn)[0].signum == signal.SIGUSR1
    assert life.asked(ChangeWorkers)[0].goes


def _between_rounds() -> Life:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason="node b lost"))
    life.take(left(1, 0))
    life.take(left(1, 1))
    return life


def test_the_last_node_saves_what_only_it_remembers_before_it_leaves() -> None:
    life = _between_rounds()
    life.take(Asked(15, alone=True))
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=0)]
    assert not life.asked(Finish)
    life.take(WorkerExited(1, 1, 0))
    life.take(WorkerExited(1, 0, 79, drained=True))
    (finish,) = life.asked(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_LEFT, "stopped on request")


def _goes_by_way_of_round_2(life: Life) -> None:
    """All ranks of the next round hear that the node goes; then it does."""
    assert not life.asked(DismissWorkers)
    life.take(sealed(2))
    assert life.asked(EnterWorkers)
    assert life.asked(SayDrain)
    assert life.asked(ChangeWorkers) == [
        ChangeWorkers(2, "this node was asked to leave", goes=True)
    ]
    for local_rank in (0, 1):
        life.take(left(2, local_rank, planned=True))
    assert not life.asked(SayLeft)[0].stays
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=None)]


def test_a_node_that_is_asked_between_two_rounds_goes_by_way_of_the_next_one() -> None:
    life = _between_rounds()
    life.take(Asked(15, alone=False))
    assert not life.asked(SayDrain)  # only who stays in is in the next round
    _goes_by_way_of_round_2(life)


@pytest.mark.parametrize("late", [0, 1])
def test_a_node_that_is_asked_when_its_ranks_have_said_that_it_stays_keeps_their_word(
    late: int,
) -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=False, reason="node b was asked to leave"))
    life.take(Asked(15))
    for local_rank in (0, 1):
        life.take(left(1, local_rank, planned=True, released=local_rank != late))
    (said,) = life.asked(SayLeft)
    assert (said.stays, said.workers) == (True, 2)
    _goes_by_way_of_round_2(life)


def _breaks_after_it_was_asked(life: Life, *remember: int) -> None:
    """The round breaks before its ranks could agree on a step at which they leave it."""
    life.take(Asked(15))
    life.now += 20.0  # a step may be long
    for local_rank in {0, 1} - {*remember}:
        life.take(killed(1, local_rank))
    for local_rank in remember:
        life.take(left(1, local_rank))


@pytest.mark.parametrize("remember", [(0, 1), (0,)])
def test_a_node_that_was_asked_in_a_round_that_breaks_leaves_by_way_of_the_next_one(
    remember: tuple[int, ...],
) -> None:
    life = Life().in_round()
    _breaks_after_it_was_asked(life, *remember)
    (said,) = life.asked(SayLeft)
    assert (said.stays, said.workers) == (True, len(remember))
    assert not life.asked(BootWorkers)
    life.take(sealed(2, workers=len(remember)))
    assert life.asked(ChangeWorkers)[0].goes
    for local_rank in remember:
        life.take(left(2, local_rank, planned=True, released=True))
    assert not life.asked(SayLeft)[0].stays
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=None)]


def test_it_saves_by_itself_if_no_other_round_comes() -> None:
    life = Life().in_round()
    _breaks_after_it_was_asked(life, 0, 1)
    life.now = life.asked(SetAlarm)[-1].at
    life.take(Alarm(alone=True))
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=0)]


def test_it_does_not_wait_for_longer_than_its_grace() -> None:
    life = Life().in_round()
    _breaks_after_it_was_asked(life, 0, 1)
    life.now += 60.0
    life.take(Alarm(leads=True))
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=None)]


def test_it_goes_at_once_with_no_worker_that_remembers_anything() -> None:
    life = Life().in_round()
    _breaks_after_it_was_asked(life)
    assert not life.asked(SayLeft)[0].stays
    assert life.asked(Finish)[0].exit_code == EXIT_LEFT


def test_a_node_whose_going_all_ranks_knew_waits_for_nobody_though_the_round_breaks() -> None:
    life = Life().in_round()
    life.take(Asked(15))
    life.take(left(1, 0, planned=True, released=True))
    life.take(Switch(1, broken=True, reason="worker 3 was killed on b"))
    life.take(left(1, 1, planned=True, released=True))
    assert not life.asked(SayLeft)[0].stays


def test_a_node_that_waits_to_go_saves_as_soon_as_it_is_the_last_one() -> None:
    life = _between_rounds()
    life.take(Asked(15, alone=False))
    life.now = life.asked(SetAlarm)[0].at
    life.take(Alarm(alone=False))
    assert life.asked(SetAlarm)[0].at > life.now
    life.take(Alarm(alone=True))
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=0)]


def test_the_leader_waits_longer_than_the_others_so_that_one_is_the_last() -> None:
    life = _between_rounds()
    life.take(Asked(15, leads=True))
    life.now += 7.0
    life.take(Alarm(leads=True))
    assert not life.asked(DismissWorkers)
    life.take(Alarm(alone=True, leads=True))
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=0)]


@pytest.mark.parametrize("leads", [True, False])
def test_nobody_waits_long_for_a_round_that_no_store_can_form(leads: bool) -> None:
    life = _between_rounds()
    life.take(Asked(15, leads=leads))
    life.now += 1.0
    life.take(Alarm(leads=leads))
    assert not life.asked(DismissWorkers)
    life.take(Alarm(leads=leads, served=False))
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=None)]


@pytest.mark.parametrize(
    "news",
    [
        Waiting("the world is full", 2, 1, 2, outside=True),
        Excluded("round 2 was formed without this node"),
        Alarm(),
    ],
)
def test_a_node_waits_to_go_only_while_the_others_may_need_it(news: Any) -> None:
    life = _between_rounds()
    life.take(Asked(15, alone=False))
    life.now += 60.0
    life.take(news)
    assert life.asked(DismissWorkers) == [DismissWorkers(saves=None)]


def test_a_second_signal_ends_a_node_that_waits_to_go() -> None:
    life = _between_rounds()
    life.take(Asked(15, alone=False))
    life.now += 3.0
    life.take(Asked(15, alone=False))
    assert life.asked(StopWorkers) == [StopWorkers(0.0)]


def test_a_node_that_was_in_no_round_has_nothing_to_save() -> None:
    life = Life()
    life.take(ServerReady())
    life.take(Prepare())
    life.take(WorkerReady(0))
    life.take(WorkerReady(1))
    life.take(Asked(15, alone=True))
    assert not life.asked(DismissWorkers)
    assert life.asked(Finish)


def test_a_node_leaves_although_its_workers_were_started_for_an_earlier_round() -> None:
    life = Life().in_round()
    for local_rank in (0, 1):
        life.take(left(1, local_rank, planned=True))
    life.take(sealed(2))
    life.take(Asked(15))
    for local_rank in (0, 1):
        life.take(left(2, local_rank, planned=True))
    for local_rank in (0, 1):
        life.take(WorkerExited(1, local_rank, 79, drained=True))
    assert life.asked(Finish)[0].exit_code == EXIT_LEFT


def test_a_worker_that_does_not_end_when_it_is_dismissed_is_stopped() -> None:
    life = Life().in_round()
    life.take(Asked(15))
    life.take(left(1, 0, planned=True))
    life.take(left(1, 1, planned=True))
    (alarm,) = (a for a in life.asked(SetAlarm) if a.at < float("inf"))
    life.now = alarm.at
    life.take(Alarm())
    assert life.asked(StopWorkers)


def test_a_new_node_has_its_workers_ready_before_it_asks_in() -> None:
    life = Life()
    life.take(ServerReady())
    assert life.asked(SayJoin)
    life.take(Prepare())
    assert life.asked(BootWorkers) == [BootWorkers((0, 1))]
    life.take(WorkerReady(0))
    life.take(WorkerReady(1))
    assert life.asked(SayAvailable) == [SayAvailable(2)]
    life.take(sealed(5))
    assert life.asked(EnterWorkers)


def test_an_excluded_node_asks_in_again_with_the_same_processes() -> None:
    life = Life().in_round()
    life.take(Excluded("the job went on without this node"))
    assert life.asked(InterruptWorkers)
    life.take(left(1, 0))
    life.take(left(1, 1))
    assert life.asked(SayJoin) == [SayJoin(2)]
    assert not life.asked(BootWorkers)


def test_the_job_ends_well_when_all_have_returned() -> None:
    life = Life().in_round()
    life.take(WorkerReturned(0, 1))
    life.take(WorkerReturned(1, 1))
    life.take(WorkerExited(1, 0, 0))
    assert not life.asked(SayDone)
    life.take(WorkerExited(1, 1, 0))
    assert life.asked(SayDone) == [SayDone(1)]


def test_a_failure_after_the_end_of_training_starts_all_anew() -> None:
    life = Life().in_round()
    life.take(WorkerReturned(0, 1))
    life.take(WorkerReturned(1, 1))
    life.take(WorkerExited(1, 0, 0))
    life.take(killed(1, 1))
    assert life.asked(SayLeft)[0].workers == 0
    assert life.asked(BootWorkers) == [BootWorkers((0, 1))]


def test_a_worker_that_returns_from_a_broken_round_does_not_end_it_well() -> None:
    # A peer died when all ranks had returned: this one no longer notices, but the others do.
    life = Life(replace(SETTINGS, workers=1))
    for event in (ServerReady(), sealed(1, workers=1), WorkerReady(0)):
        life.take(event)
    life.take(Switch(1, broken=True, reason="worker 1 was killed on b"))
    life.take(WorkerReturned(0, 1))
    assert life.asked(StopWorkers)
    life.take(WorkerExited(1, 0, 0))
    assert not life.asked(SayDone)
    assert life.asked(SayLeft)[0].stays
    assert life.asked(BootWorkers) == [BootWorkers((0,))]


def test_a_peer_on_the_same_node_that_dies_late_spoils_the_end() -> None:
    life = Life().in_round()
    life.take(killed(1, 1))
    life.take(WorkerReturned(0, 1))
    assert not life.asked(SayLeft)
    life.take(WorkerExited(1, 0, 0))
    life.take(killed(1, 1))  # its replacement was told to stop as well
    assert not life.asked(SayDone)
    assert life.asked(SayLeft)[0].fault.kind == KILLED
    assert life.asked(BootWorkers) == [BootWorkers((0, 1))]


def test_a_round_is_not_left_while_a_worker_that_has_returned_still_runs() -> None:
    life = Life().in_round()
    life.take(WorkerReturned(0, 1))
    life.take(killed(1, 1))
    assert not life.asked(SayLeft)
    assert life.asked(StopWorkers)


def test_a_node_that_started_anew_hears_of_the_next_break_as_well() -> None:
    life = Life(replace(SETTINGS, workers=1))
    for event in (ServerReady(), sealed(1, workers=1), WorkerReady(0)):
        life.take(event)
    for number in (1, 2):
        life.take(WorkerReturned(0, number))
        life.take(Switch(number, broken=True, reason="worker 1 was killed on b"))
        assert life.asked(StopWorkers), number
        life.take(WorkerExited(number, 0, 0))
        assert life.asked(SayLeft), number
        life.take(WorkerReady(0))
        life.take(sealed(number + 1, workers=1))
        assert life.asked(EnterWorkers)


def test_a_worker_that_ends_early_with_code_0_has_failed() -> None:
    life = Life().in_round()
    life.take(WorkerExited(1, 0, 0))
    life.take(left(1, 1))
    assert "exit code 0" in life.asked(SayLeft)[0].fault.reason


def test_a_replacement_that_never_comes_to_run_ends_the_node() -> None:
    life = Life().in_round()
    life.take(killed(1, 0))
    life.take(left(1, 1))
    life.take(sealed(2, workers=1))
    life.take(killed(1, 0))
    life.take(killed(1, 0))
    assert life.asked(BootWorkers)
    life.take(killed(1, 0))
    assert life.asked(StopWorkers)
    life.take(WorkerExited(2, 1, -15))
    assert life.asked(Finish)[0].exit_code == EXIT_FAILED


def test_a_worker_that_died_between_two_rounds_is_not_waited_for() -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason="node b lost"))
    life.take(left(1, 0))
    life.take(left(1, 1))
    life.take(killed(1, 1))
    assert life.asked(SayAvailable) == [SayAvailable(1)]
    life.take(sealed(2, workers=2))
    (said,) = life.asked(SayLeft)
    assert (said.round, said.workers) == (2, 1)
    life.take(sealed(3, workers=1))
    assert life.asked(EnterWorkers)[0].local_ranks == (0,)


def test_a_node_whose_fork_server_died_leaves_at_once_and_comes_back_when_it_has_workers() -> None:
    life = Life().in_round()
    life.take(with_server(1, 0))
    life.take(with_server(1, 1))
    assert life.asked(SayLeft)[0].workers == 0
    assert life.state.seated(Seat.BOOT) == (0, 1)
    life.take(ServerDied("signal 9"))
    assert life.asked(StartServer)
    # That the next ones end as well, each time, is no failure of the script's start.
    for _ in range(2):
        for local_rank in (0, 1):
            life.take(with_server(1, local_rank))
            assert life.asked(BootWorkers) == [BootWorkers((local_rank,))]
        life.take(ServerDied("signal 9"))
    life.take(ServerReady())
    life.take(WorkerReady(0))
    life.take(WorkerReady(1))
    assert life.asked(SayAvailable) == [SayAvailable(2)]


def refused(number: int, local_rank: int) -> WorkerExited:
    reason = f"worker {local_rank} cannot be started: this machine has no room for it"
    fault = FaultReport(number, START, reason, signature=NO_ROOM)
    return WorkerExited(number, local_rank, 127, fault=fault)


def test_a_replacement_that_has_no_room_ends_no_survivor() -> None:
    life = Life().in_round()
    life.take(killed(1, 1))
    life.take(left(1, 0))
    life.take(sealed(2, workers=1))
    for _ in range(5):
        life.take(refused(2, 1))
        assert life.asked(BootWorkers) == [BootWorkers((1,))]
        assert not life.asked(Finish)
    assert life.state.seated(Seat.IN) == (0,)
    life.take(WorkerReturned(0, 2))
    life.take(refused(2, 1))
    assert life.state.seated(Seat.OUT) == (0,)
    assert [type(action) for action in life.actions] == [Report]
    life.take(WorkerExited(1, 0, 0))
    assert life.asked(SayDone)


def test_a_node_that_has_no_room_for_any_worker_leaves_the_others() -> None:
    life = Life().in_round()
    for local_rank in (0, 1):
        life.take(killed(1, local_rank))
    assert life.state.phase is Phase.WAITING
    life.take(refused(1, 0))
    (finish,) = life.asked(Finish)
    assert finish.exit_code == EXIT_FAILED
    assert finish.message == "worker 0 cannot be started: this machine has no room for it"


def test_ranks_that_all_wait_for_each_other_are_interrupted() -> None:
    life = Life().in_round()
    life.take(NoProgress(61.0, 30.0))
    life.take(WorkerHeard(0, True, "a", ""))
    life.take(WorkerHeard(1, True, "a", ""))
    life.now += 1.0
    life.take(Surveyed(1, ()))
    life.take(NoProgress(62.0, 30.0))
    assert life.asked(InterruptWorkers)
    life.take(left(1, 0))
    life.take(left(1, 1))
    assert life.asked(SayLeft)[0].fault.signature == "hang"


def test_the_end_does_not_wait_for_a_replacement_that_is_in_no_round() -> None:
    life = Life().in_round()
    life.take(killed(1, 1))
    life.take(left(1, 0))
    life.take(sealed(2, workers=1))
    life.take(WorkerReturned(0, 2))
    life.take(WorkerExited(1, 0, 0))
    assert life.asked(SayDone)
    life.take(WorkerReady(1))
    assert not life.actions
