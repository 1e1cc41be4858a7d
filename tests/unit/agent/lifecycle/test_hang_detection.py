"""When a round counts as hanging, and who is asked where it is, ended for it, or left alone."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.lifecycle.hang_detection import (
    BUSY,
    HangClock,
    NoStepExpected,
    StepOverdue,
    StepProgress,
)
from elastic_runtime.agent.lifecycle.lifecycle_state import Phase
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    KillWorkers,
    LeaveRequested,
    ProgressSeen,
    SetAlarm,
    TellPeople,
    TellWorkers,
    WorkerSaid,
)
from elastic_runtime.events.round_events import RoundWaits, StepNone
from elastic_runtime.events.worker_events import WorkersBusy, WorkerStuck
from elastic_runtime.limits import LONG_FIRST_STEP
from elastic_runtime.protocol.messages import HANG, Ask, Interrupt
from elastic_runtime.protocol.records import CUT_OFF, LOST
from elastic_runtime.rendezvous.core.membership_events import LeftRound, LookForMembers
from elastic_runtime.rendezvous.core.notices import Surveyed, Switch
from tests.unit.agent.lifecycle.agents import BREAKS, SETTINGS, Walk, answered, in_round, left

LIMIT = 6.0


class Watch:
    """Shows a clock what workers do, and looks four times a second as an agent does."""

    def __init__(self, step: float = 1.0) -> None:
        self.clock = HangClock(LIMIT)
        self.now = 1000.0
        self.round = 0
        self.progress = StepProgress()
        self.overdue: list[float] = []
        self.enter()
        self.steps(3, step)

    def look(self) -> None:
        self.clock = self.clock.after(self.progress, self.round, self.now)
        if self.clock.overdue(self.now):
            self.overdue.append(self.now)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.25)
            self.look()

    def enter(self) -> None:
        self.round += 1
        self.progress = StepProgress(
            self.progress.count, self.progress.moment, self.now, in_train=True
        )
        self.look()

    def leave(self) -> None:
        self.progress = StepProgress(self.progress.count, self.progress.moment)
        self.look()

    def steps(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.wait(seconds)
            fresh = (self.progress.expected or 0.0) > self.progress.moment
            self.progress = StepProgress(
                1 if fresh else self.progress.count + 1, self.now, self.progress.expected
            )
        self.look()


def test_time_outside_of_a_round_never_counts() -> None:
    watch = Watch()
    watch.leave()
    watch.wait(100 * LIMIT)
    watch.enter()
    assert watch.clock.step_seconds(watch.now) == 0.0
    watch.steps(3, 1.0)
    assert not watch.overdue


def test_a_step_is_overdue_after_the_limit_also_the_first_one_of_a_round() -> None:
    watch = Watch()
    watch.wait(LIMIT + 1.0)
    assert watch.overdue
    watch.leave()
    watch.wait(50.0)
    watch.overdue.clear()
    watch.enter()
    watch.wait(LIMIT)
    assert not watch.overdue
    watch.wait(1.0)
    assert watch.overdue
    assert watch.clock.step_seconds(watch.now) == LIMIT + 1.0


def test_before_the_first_step_of_all_nothing_is_known() -> None:
    clock = HangClock(LIMIT).after(StepProgress(expected=1000.0), 1, 1000.0)
    assert not clock.overdue(5000.0)
    assert not HangClock(0.0).after(StepProgress(1, 2000.0, 1000.0), 1, 2000.0).overdue(5000.0)


def test_it_is_known_how_long_train_has_gone_on_without_any_step() -> None:
    watch = Watch()
    assert watch.clock.first_step_seconds(watch.now + 100) == 0.0
    watch.clock = HangClock(LIMIT)
    assert watch.clock.first_step_seconds(watch.now) == 0.0, "nobody is in train"
    watch.enter()
    watch.wait(61.0)
    assert watch.clock.first_step_seconds(watch.now) == 61.0
    watch.leave()
    assert watch.clock.first_step_seconds(watch.now) == 0.0


def test_the_first_step_of_a_round_may_take_as_long_as_the_first_of_all_did() -> None:
    watch = Watch()
    slow = HangClock(LIMIT).after(StepProgress(expected=1000.0), 1, 1000.0)
    slow = slow.after(StepProgress(1, 1020.0, 1000.0), 1, 1020.0)  # it compiles
    slow = slow.after(StepProgress(2, 1021.0, 1000.0), 1, 1021.0)
    assert slow.limit == LIMIT
    slow = slow.after(StepProgress(2, 1021.0, 1030.0), 2, 1030.0)
    assert slow.limit == 60.0
    assert slow.after(StepProgress(1, 1050.0, 1030.0), 2, 1050.0).limit == LIMIT
    assert watch.clock.limit == LIMIT


@pytest.mark.parametrize("stall", [5.0, 5.9, 7.0, 30.0])
def test_a_stall_that_heals_does_not_stretch_the_limit(stall: float) -> None:
    watch = Watch()
    for _ in range(3):
        watch.steps(1, stall)
        watch.steps(4, 1.0)
        assert watch.clock.limit == LIMIT
    watch.overdue.clear()
    watch.wait(LIMIT + 0.5)
    assert watch.overdue


def test_steps_that_are_always_long_stretch_the_limit() -> None:
    watch = Watch(step=5.0)
    assert watch.clock.limit == 15.0
    watch.steps(3, 14.0)
    assert not watch.overdue


def test_to_be_busy_stretches_nothing_and_is_never_overdue() -> None:
    watch = Watch()
    for _ in range(20):
        watch.wait(0.5)
        watch.leave()
        watch.wait(60.0)
        watch.progress = StepProgress(watch.progress.count, watch.progress.moment, watch.now)
        watch.steps(1, 1.0)
    assert watch.clock.limit == LIMIT
    assert not watch.overdue


def test_how_long_a_worker_is_busy_is_known_over_rounds_and_until_it_ends() -> None:
    clock = HangClock(LIMIT).after(StepProgress(busy=True), 1, 10.0)
    clock = clock.after(StepProgress(expected=12.0, busy=True), 2, 12.0)
    assert clock.busy_seconds(15.0) == 5.0
    clock = clock.after(StepProgress(expected=16.0), 2, 16.0)
    assert clock.busy_seconds(20.0) == 0.0
    assert clock.after(StepProgress(busy=True), 2, 21.0).busy_seconds(22.0) == 1.0


def test_many_steps_between_two_looks_are_measured_by_their_number() -> None:
    clock = HangClock(LIMIT).after(StepProgress(expected=10.0), 1, 10.0)
    clock = clock.after(StepProgress(1, 11.0, 10.0), 1, 11.0)
    clock = clock.after(StepProgress(11, 41.0, 10.0), 1, 41.0)
    assert clock.steps == (3.0,)


def test_the_way_into_train_is_measured_in_each_round_and_not_beyond() -> None:
    watch = Watch()
    watch.wait(100.0)
    assert watch.clock.entering_seconds(watch.now) == 0.0
    watch.leave()
    watch.wait(10.0)
    assert watch.clock.entering_seconds(watch.now) == 0.0, "evaluation is on no way"
    watch.round += 1
    watch.look()
    watch.wait(70.0)
    assert watch.clock.entering_seconds(watch.now) == 70.0
    watch.progress = StepProgress(watch.progress.count, watch.progress.moment, in_train=True)
    watch.look()
    assert watch.clock.entering_seconds(watch.now) == 0.0, "busy with the first thing in train"


# Workers that stand still: who is asked where it is, who is ended for it, who is left alone.


WORKS = answered(0, False, "train.py:9")
SAYS_WHY = answered(0, False, "train.py:9", "evaluation")
WAITS = answered(0, True, "a")


def _asked() -> Walk:
    agent = in_round(NoStepExpected(61.0, "not in train"))
    assert agent.told(Ask) == [TellWorkers(Ask(), (0, 1))]
    return agent


def test_who_answers_may_load_for_ever() -> None:
    agent = _asked()
    for _ in range(5):
        agent.play(answered(0, True, "train.py:7"), answered(1, False, "train.py:7"))
        agent.now += agent.state.settings.timeouts.rejoin_timeout + 1.0
        agent.play(NoStepExpected(200.0, "busy"))
        assert agent.told(Ask), "they are asked again"
        assert not agent.asked(KillWorkers)


def test_people_hear_where_workers_are_busy_for_long_but_not_for_ever() -> None:
    agent = in_round(NoStepExpected(61.0, BUSY))
    told = []
    for seconds in (122.0, 183.0, 244.0):
        agent.play(answered(0, True, "eval.py:7"), answered(1, False, "eval.py:9"))
        agent.now += agent.state.settings.timeouts.rejoin_timeout + 1.0
        agent.play(NoStepExpected(seconds, BUSY))
        told.append([one.event for one in agent.asked(TellPeople)])
    first = agent.state.round.first_worker(agent.state.group_rank)
    where = f"rank {first} waits at eval.py:7, rank {first + 1} is at eval.py:9"
    assert told == [[WorkersBusy(122, where)], [], []]


def test_who_does_not_answer_for_long_is_replaced() -> None:
    agent = _asked()
    agent.play(answered(0, True, "train.py:7"))
    agent.now += agent.state.settings.timeouts.rejoin_timeout - 1.0
    agent.play(NoStepExpected(120.0, "not in train"))
    assert not agent.actions, "loading may hold Python's lock for long"
    agent.now += 2.0
    agent.play(NoStepExpected(122.0, "not in train"))
    assert agent.one(KillWorkers).local_ranks == (1,)
    stuck = WorkerStuck("not in train for 122 s, and no answer for 60 s", [1])
    assert agent.one(TellPeople).event == stuck


@pytest.mark.parametrize(("heard", "ends"), [(None, True), (WAITS, True), (WORKS, False)])
def test_a_worker_that_does_not_leave_is_ended_unless_it_is_busy(
    heard: WorkerSaid | None, ends: bool
) -> None:
    agent = in_round(BREAKS, left(1, 1), Alarm())
    assert agent.told(Ask) == [TellWorkers(Ask(), (0,))]
    if heard:
        agent.play(heard)
    else:
        agent.now += 1.0
        agent.play(Alarm())
        assert not agent.asked(KillWorkers), "a slow machine makes a healthy worker late"
        assert agent.asked(SetAlarm)
        agent.now += 1.5
    agent.play(Alarm())
    assert bool(agent.asked(KillWorkers)) == ends


def test_a_busy_worker_of_a_node_that_leaves_gets_no_more_than_the_grace_again() -> None:
    agent = in_round(LeaveRequested(15))
    agent.now += agent.state.settings.timeouts.grace
    agent.play(Alarm())
    assert agent.told(Interrupt), "it has come to no commit"
    agent.play(left(1, 1))
    for more, ends in ((2.0, False), (agent.state.settings.timeouts.grace, True)):
        agent.now += more
        agent.play(Alarm(), SAYS_WHY, Alarm())
        assert [kill.local_ranks for kill in agent.asked(KillWorkers)] == ([(0,)] if ends else [])
    why = "it has come to no commit, and is at train.py:9 (--grace)"
    assert agent.one(KillWorkers).why == f"did not leave the broken round: {why}"


@pytest.mark.parametrize(("heard", "ends"), [(WORKS, True), (SAYS_WHY, False)])
def test_who_works_while_all_others_have_waited_is_ended_unless_it_says_why(
    heard: WorkerSaid, ends: bool
) -> None:
    hangs = Switch(1, broken=True, reason=f"no step for 62 s: {HANG} (--hang-timeout)")
    agent = in_round(hangs, left(1, 1), Alarm(), heard, Alarm())
    assert [kill.local_ranks for kill in agent.asked(KillWorkers)] == ([(0,)] if ends else [])
    assert all("train.py:9" in kill.why for kill in agent.asked(KillWorkers))


@pytest.mark.parametrize(
    ("heard", "why"),
    [(WORKS, "no step for 161 s, and it is at train.py:9 (--hang-timeout)"), (SAYS_WHY, "")],
)
def test_who_hangs_is_found_also_in_a_round_that_has_broken_for_another_reason(
    heard: WorkerSaid, why: str
) -> None:
    agent = in_round()
    agent.now += 100.0
    agent.play(BREAKS, left(1, 1))

    def look(seconds: float) -> None:
        agent.play(StepOverdue(seconds, 30.0), Alarm())
        assert agent.told(Ask)
        agent.play(StepOverdue(seconds, 30.0), heard, Alarm())

    look(131.0)
    assert not agent.asked(KillWorkers), "it may have waited for others for most of that"
    agent.now += 30.0
    look(161.0)
    whys = [f"did not leave the broken round: {why}"] if why else []
    assert [kill.why for kill in agent.asked(KillWorkers)] == whys


def test_who_has_just_been_released_is_not_overdue() -> None:
    agent = in_round(BREAKS, left(1, 1))
    agent.now += 31.0
    agent.play(StepOverdue(31.0, 30.0), Alarm(), StepOverdue(31.1, 30.0), WORKS, Alarm())
    assert not agent.asked(KillWorkers), "its errors are on their way"


def test_a_busy_worker_is_ended_when_the_others_have_waited_for_too_long() -> None:
    agent = in_round(BREAKS, Alarm(), WORKS, answered(1, False, "train.py:9"))
    agent.now += SETTINGS.timeouts.rejoin_timeout
    agent.play(Alarm())
    assert agent.one(KillWorkers).local_ranks == (0, 1)


@pytest.mark.parametrize(
    ("heard", "guilty"),
    [
        ((WAITS, answered(1, False, "b.py:3")), (1,)),
        ((WAITS,), (1,)),
        ((WAITS, answered(1, False, "b", "evaluation")), ()),
        ((WAITS, answered(1, True, "a")), ()),
    ],
)
def test_a_hang_is_blamed_on_who_does_not_wait_for_others(
    heard: tuple[WorkerSaid, ...], guilty: tuple[int, ...]
) -> None:
    agent = in_round(StepOverdue(31.0, 30.0))
    assert agent.told(Ask) == [TellWorkers(Ask(), (0, 1))]
    for one in heard:
        agent.play(one, StepOverdue(31.1, 30.0))
        assert not agent.actions, "the others have had no time to answer"
    agent.play(Surveyed(1, ()))
    agent.now += 1.0
    agent.play(StepOverdue(32.0, 30.0))
    if len(heard) == 1:
        assert not agent.actions, "a slow machine makes a healthy worker late"
        agent.now += 1.5
        agent.play(StepOverdue(33.5, 30.0))
    kills = agent.asked(KillWorkers)
    assert [kill.local_ranks for kill in kills] == ([guilty] if guilty else [])
    how = "hung at b.py:3" if len(heard) == 2 else "hung and does not answer"
    assert all(kill.why.startswith(f"{how}: no step for 3") for kill in kills)


def test_nobody_is_blamed_before_it_is_known_that_the_others_are_in_reach() -> None:
    agent = in_round(StepOverdue(61.0, 30.0))
    assert agent.said(LookForMembers) == [LookForMembers(1)]
    agent.now += 2.5
    assert not agent.play(StepOverdue(62.0, 30.0)).actions, "it has not been answered"
    agent.play(Surveyed(1, ()), StepOverdue(62.1, 30.0))
    assert agent.one(KillWorkers).local_ranks == (0, 1)


def test_a_node_that_is_busy_is_waited_for_and_the_time_counts_from_its_end() -> None:
    agent = in_round()

    def ask(seconds: float, busy: tuple[str, ...]) -> None:
        agent.play(StepOverdue(seconds, 30.0))
        assert agent.said(LookForMembers)
        agent.play(WAITS, answered(1, True, "a"), Surveyed(1, (), busy))
        said = [one.event for one in agent.asked(TellPeople)]
        assert said == ([RoundWaits(list(busy))] if busy else [])
        agent.now += 1.0
        agent.play(StepOverdue(seconds + 1.0, 30.0))

    ask(61.0, ("b",))
    assert not agent.actions, "it has said what it does"
    agent.now += 28.0
    assert not agent.play(StepOverdue(90.0, 30.0)).actions, "nor is it asked all the time"
    agent.now += 5.0
    ask(95.0, ())
    assert not agent.actions, "it was busy a short time ago"
    agent.now += 30.0
    ask(126.0, ())
    assert agent.said(LeftRound) or agent.told(Interrupt)
    hangs = next(one.event for one in agent.asked(TellPeople))
    first = agent.state.round.first_worker(agent.state.group_rank)
    assert f"rank {first} waits at a, rank {first + 1} waits at a" in hangs.why


def test_who_does_not_reach_the_others_leaves_the_round_and_nothing_is_counted() -> None:
    agent = in_round(StepOverdue(31.0, 30.0), Surveyed(1, ("c",)))
    assert agent.told(Interrupt)
    assert not agent.asked(KillWorkers)
    agent.play(left(1, 0), left(1, 1))
    fault = agent.one_said(LeftRound).fault
    assert (fault.kind, fault.signature, fault.consequence) == (LOST, CUT_OFF, True)
    assert fault.reason.endswith("does not reach c")


def _without_step(seconds: float, *, messages_wait: bool = False) -> Walk:
    """Workers are in ``train`` for so long, and their agent looks twice."""
    agent = in_round()
    progress = StepProgress(expected=agent.now, in_train=True)
    agent.play(ProgressSeen(progress))
    assert not agent.actions
    agent.now += seconds
    agent.play(ProgressSeen(progress, messages_wait))
    return agent


def test_the_progress_of_workers_is_measured_from_look_to_look() -> None:
    assert not _without_step(LONG_FIRST_STEP - 1.0).actions
    agent = _without_step(LONG_FIRST_STEP + 1.0)
    looks = ProgressSeen(StepProgress(expected=100.0, in_train=True))
    assert agent.told(Ask) == [TellWorkers(Ask(), (0, 1))]
    agent.play(answered(0, True, "train.py:7"), looks)
    assert not agent.actions, "the other one has yet to answer"
    agent.play(answered(1, False, "train.py:9"), looks)
    first = agent.state.round.first_worker(agent.state.group_rank)
    where = f"rank {first} waits at train.py:7, rank {first + 1} is at train.py:9"
    assert agent.asked(TellPeople) == [TellPeople(StepNone(61, where))]
    agent.play(looks)
    assert not agent.actions, "it is reported once"


def test_where_workers_were_before_they_came_to_train_is_not_told() -> None:
    agent = _asked()
    agent.play(answered(0, True, "load.py:7"), answered(1, True, "load.py:7"))
    progress = StepProgress(expected=agent.now, in_train=True)
    agent.play(ProgressSeen(progress))
    agent.now += LONG_FIRST_STEP + 1.0
    agent.play(ProgressSeen(progress))
    assert agent.told(Ask), "they are asked anew"
    assert not agent.asked(TellPeople)


def test_who_does_not_say_where_it_is_before_the_first_step_is_not_waited_for() -> None:
    agent = _without_step(LONG_FIRST_STEP + 1.0)
    agent.now += 60.0
    agent.play(ProgressSeen(StepProgress(expected=100.0, in_train=True)))
    assert agent.asked(TellPeople) == [TellPeople(StepNone(121, "nobody says where"))]


def test_nothing_is_concluded_before_all_messages_of_workers_are_read() -> None:
    agent = _without_step(LONG_FIRST_STEP + 1.0, messages_wait=True)
    assert not agent.actions
    agent.play(ProgressSeen(StepProgress(expected=100.0, in_train=True)))
    assert agent.told(Ask)


def test_workers_that_are_being_stopped_do_not_hang() -> None:
    agent = in_round(LeaveRequested(15))
    agent.now += 1.0 + agent.state.settings.timeouts.grace
    agent.play(LeaveRequested(15))
    assert agent.state.phase is Phase.STOPPING
    for _ in range(2):
        agent.play(ProgressSeen(StepProgress(expected=100.0, in_train=True)))
        assert not agent.actions
        agent.now += 10 * LONG_FIRST_STEP
