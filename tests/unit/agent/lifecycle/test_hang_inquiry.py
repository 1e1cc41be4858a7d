"""Workers that stand still: who is asked where it is, who is ended for it, who is left alone."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.lifecycle.hang_detection import (
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
from elastic_runtime.events.worker_events import WorkerStuck
from elastic_runtime.limits import LONG_FIRST_STEP
from elastic_runtime.protocol.messages import HANG, Ask, Interrupt
from elastic_runtime.protocol.records import CUT_OFF, LOST
from elastic_runtime.rendezvous.core.membership_events import LeftRound, LookForMembers
from elastic_runtime.rendezvous.core.notices import Surveyed, Switch
from tests.unit.agent.lifecycle.in_place_agent import SETTINGS, InPlaceAgent, answered, left


def _asked() -> InPlaceAgent:
    agent = InPlaceAgent().in_round()
    agent.take(NoStepExpected(61.0, "not in train"))
    assert agent.told(Ask) == [TellWorkers(Ask(), (0, 1))]
    return agent


def test_who_answers_may_load_for_ever() -> None:
    agent = _asked()
    for _ in range(5):
        agent.take(answered(0, True, "train.py:7", ""))
        agent.take(answered(1, False, "train.py:7", ""))
        agent.now += agent.state.settings.timeouts.rejoin_timeout + 1.0
        agent.take(NoStepExpected(200.0, "busy"))
        assert agent.told(Ask), "they are asked again"
        assert not agent.asked(KillWorkers)


def test_who_does_not_answer_for_long_is_replaced() -> None:
    agent = _asked()
    agent.take(answered(0, True, "train.py:7", ""))
    agent.now += agent.state.settings.timeouts.rejoin_timeout - 1.0
    assert not agent.take(NoStepExpected(120.0, "not in train")), (
        "loading may hold Python's lock for long"
    )
    agent.now += 2.0
    agent.take(NoStepExpected(122.0, "not in train"))
    assert [kill.local_ranks for kill in agent.asked(KillWorkers)] == [(1,)]
    (report,) = agent.asked(TellPeople)
    assert report.event == WorkerStuck("not in train for 122 s, and no answer for 60 s", [1])


@pytest.mark.parametrize(
    ("heard", "ends"),
    [
        (None, True),
        (answered(0, True, "train.py:7", ""), True),
        (answered(0, False, "train.py:9", ""), False),
    ],
)
def test_a_worker_that_does_not_leave_is_ended_unless_it_is_busy(
    heard: WorkerSaid | None, ends: bool
) -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason="node b lost"))
    agent.take(left(1, 1))
    agent.take(Alarm())
    assert agent.told(Ask) == [TellWorkers(Ask(), (0,))]
    if heard:
        agent.take(heard)
    else:
        agent.now += 1.0
        agent.take(Alarm())
        assert not agent.asked(KillWorkers), "a slow machine makes a healthy worker late"
        assert agent.asked(SetAlarm)
        agent.now += 1.5
    agent.take(Alarm())
    assert bool(agent.asked(KillWorkers)) == ends


def test_a_busy_worker_of_a_node_that_leaves_gets_no_more_than_the_grace_again() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(15))
    agent.now += agent.state.settings.timeouts.grace
    agent.take(Alarm())
    assert agent.told(Interrupt), "it has come to no commit"
    agent.take(left(1, 1))
    for more, ends in ((2.0, False), (agent.state.settings.timeouts.grace, True)):
        agent.now += more
        agent.take(Alarm())
        agent.take(answered(0, False, "train.py:9", "evaluation"))
        agent.take(Alarm())
        assert [kill.local_ranks for kill in agent.asked(KillWorkers)] == ([(0,)] if ends else [])
    (stuck,) = agent.asked(KillWorkers)
    why = "it has come to no commit, and is at train.py:9 (--grace)"
    assert stuck.why == f"did not leave the broken round: {why}"


@pytest.mark.parametrize(
    ("heard", "ends"),
    [
        (answered(0, False, "train.py:9", ""), True),
        (answered(0, False, "train.py:9", "evaluation"), False),
    ],
)
def test_who_works_while_all_others_have_waited_is_ended_unless_it_says_why(
    heard: WorkerSaid, ends: bool
) -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason=f"no step for 62 s: {HANG} (--hang-timeout)"))
    agent.take(left(1, 1))
    agent.take(Alarm())
    agent.take(heard)
    agent.take(Alarm())
    assert [kill.local_ranks for kill in agent.asked(KillWorkers)] == ([(0,)] if ends else [])
    assert all("train.py:9" in kill.why for kill in agent.asked(KillWorkers))


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        (
            answered(0, False, "train.py:9", ""),
            "no step for 161 s, and it is at train.py:9 (--hang-timeout)",
        ),
        (answered(0, False, "train.py:9", "evaluation"), ""),
    ],
)
def test_who_hangs_is_found_also_in_a_round_that_has_broken_for_another_reason(
    heard: WorkerSaid, why: str
) -> None:
    agent = InPlaceAgent().in_round()
    agent.now += 100.0
    agent.take(Switch(1, broken=True, reason="node b lost"))
    agent.take(left(1, 1))

    def look(seconds: float) -> None:
        agent.take(StepOverdue(seconds, 30.0))
        agent.take(Alarm())
        assert agent.told(Ask)
        agent.take(StepOverdue(seconds, 30.0))
        agent.take(heard)
        agent.take(Alarm())

    look(131.0)
    assert not agent.asked(KillWorkers), "it may have waited for others for most of that"
    agent.now += 30.0
    look(161.0)
    whys = [f"did not leave the broken round: {why}"] if why else []
    assert [kill.why for kill in agent.asked(KillWorkers)] == whys


def test_who_has_just_been_released_is_not_overdue() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason="node b lost"))
    agent.take(left(1, 1))
    agent.now += 31.0
    agent.take(StepOverdue(31.0, 30.0))
    agent.take(Alarm())
    agent.take(StepOverdue(31.1, 30.0))
    agent.take(answered(0, False, "train.py:9", ""))
    agent.take(Alarm())
    assert not agent.asked(KillWorkers), "its errors are on their way"


def test_a_busy_worker_is_ended_when_the_others_have_waited_for_too_long() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason="node b lost"))
    agent.take(Alarm())
    agent.take(answered(0, False, "train.py:9", ""))
    agent.take(answered(1, False, "train.py:9", ""))
    agent.now += SETTINGS.timeouts.rejoin_timeout
    agent.take(Alarm())
    assert agent.asked(KillWorkers)[0].local_ranks == (0, 1)


@pytest.mark.parametrize(
    ("heard", "guilty"),
    [
        ((answered(0, True, "a", ""), answered(1, False, "b.py:3", "")), (1,)),
        ((answered(0, True, "a", ""),), (1,)),
        ((answered(0, True, "a", ""), answered(1, False, "b", "evaluation")), ()),
        ((answered(0, True, "a", ""), answered(1, True, "a", "")), ()),
    ],
)
def test_a_hang_is_blamed_on_who_does_not_wait_for_others(
    heard: tuple[WorkerSaid, ...], guilty: tuple[int, ...]
) -> None:
    agent = InPlaceAgent().in_round()
    agent.take(StepOverdue(31.0, 30.0))
    assert agent.told(Ask) == [TellWorkers(Ask(), (0, 1))]
    for one in heard:
        agent.take(one)
        agent.take(StepOverdue(31.1, 30.0))
        assert not agent.actions, "the others have had no time to answer"
    agent.take(Surveyed(1, ()))
    agent.now += 1.0
    agent.take(StepOverdue(32.0, 30.0))
    if len(heard) == 1:
        assert not agent.actions, "a slow machine makes a healthy worker late"
        agent.now += 1.5
        agent.take(StepOverdue(33.5, 30.0))
    kills = agent.asked(KillWorkers)
    assert [kill.local_ranks for kill in kills] == ([guilty] if guilty else [])
    how = "hung at b.py:3" if len(heard) == 2 else "hung and does not answer"
    assert all(kill.why.startswith(f"{how}: no step for 3") for kill in kills)


def test_nobody_is_blamed_before_it_is_known_that_the_others_are_in_reach() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(StepOverdue(61.0, 30.0))
    assert agent.said(LookForMembers) == [LookForMembers(1)]
    agent.now += 2.5
    assert not agent.take(StepOverdue(62.0, 30.0)), "it has not been answered"
    agent.take(Surveyed(1, ()))
    agent.take(StepOverdue(62.1, 30.0))
    assert agent.asked(KillWorkers)[0].local_ranks == (0, 1)


def test_a_node_that_is_busy_is_waited_for_and_the_time_counts_from_its_end() -> None:
    agent = InPlaceAgent().in_round()

    def ask(seconds: float, busy: tuple[str, ...]) -> None:
        agent.take(StepOverdue(seconds, 30.0))
        assert agent.said(LookForMembers)
        for rank in (0, 1):
            agent.take(answered(rank, True, "a", ""))
        said = [
            one.event for one in agent.take(Surveyed(1, (), busy)) if isinstance(one, TellPeople)
        ]
        assert said == ([RoundWaits(list(busy))] if busy else [])
        agent.now += 1.0
        agent.take(StepOverdue(seconds + 1.0, 30.0))

    ask(61.0, ("b",))
    assert not agent.actions, "it has said what it does"
    agent.now += 28.0
    assert not agent.take(StepOverdue(90.0, 30.0)), "nor is it asked all the time"
    agent.now += 5.0
    ask(95.0, ())
    assert not agent.actions, "it was busy a short time ago"
    agent.now += 30.0
    ask(126.0, ())
    assert agent.said(LeftRound) or agent.told(Interrupt)


def test_who_does_not_reach_the_others_leaves_the_round_and_nothing_is_counted() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(StepOverdue(31.0, 30.0))
    agent.take(Surveyed(1, ("c",)))
    assert agent.told(Interrupt)
    assert not agent.asked(KillWorkers)
    agent.take(left(1, 0))
    agent.take(left(1, 1))
    fault = agent.said(LeftRound)[0].fault
    assert (fault.kind, fault.signature, fault.consequence) == (LOST, CUT_OFF, True)
    assert fault.reason.endswith("does not reach c")


def _without_step(seconds: float, *, messages_wait: bool = False) -> InPlaceAgent:
    """Workers are in ``train`` for so long, and their agent looks twice."""
    agent = InPlaceAgent().in_round()
    progress = StepProgress(expected=agent.now, in_train=True)
    agent.take(ProgressSeen(progress))
    assert not agent.actions
    agent.now += seconds
    agent.take(ProgressSeen(progress, messages_wait))
    return agent


def test_the_progress_of_workers_is_measured_from_look_to_look() -> None:
    assert not _without_step(LONG_FIRST_STEP - 1.0).actions
    agent = _without_step(LONG_FIRST_STEP + 1.0)
    assert agent.asked(TellPeople) == [TellPeople(StepNone(61))]
    agent.take(ProgressSeen(StepProgress(expected=100.0, in_train=True)))
    assert not agent.actions, "it is reported once"


def test_nothing_is_concluded_before_all_messages_of_workers_are_read() -> None:
    agent = _without_step(LONG_FIRST_STEP + 1.0, messages_wait=True)
    assert not agent.actions
    agent.take(ProgressSeen(StepProgress(expected=100.0, in_train=True)))
    assert agent.asked(TellPeople)


def test_workers_that_are_being_stopped_do_not_hang() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(LeaveRequested(15))
    agent.now += 1.0 + agent.state.settings.timeouts.grace
    agent.take(LeaveRequested(15))
    assert agent.state.phase is Phase.STOPPING
    for _ in range(2):
        agent.take(ProgressSeen(StepProgress(expected=100.0, in_train=True)))
        assert not agent.actions
        agent.now += 10 * LONG_FIRST_STEP
