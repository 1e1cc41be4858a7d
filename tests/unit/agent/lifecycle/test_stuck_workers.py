"""Workers that stand still: who is asked where it is, who is ended for it, who is left alone."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    Asked,
    AskWorkers,
    InterruptWorkers,
    KillWorkers,
    LookForMembers,
    NoNews,
    NoProgress,
    Report,
    SayLeft,
    SetAlarm,
    WorkerHeard,
)
from elastic_runtime.events.round_events import RoundWaits
from elastic_runtime.events.worker_events import WorkerStuck
from elastic_runtime.protocol.messages import HANG
from elastic_runtime.protocol.records import CUT_OFF, LOST
from elastic_runtime.rendezvous.core.notices import Surveyed, Switch
from tests.unit.agent.lifecycle.test_in_place_lifecycle import SETTINGS, Life, left


def _asked() -> Life:
    life = Life().in_round()
    life.take(NoNews(61.0, "not in train"))
    assert life.asked(AskWorkers) == [AskWorkers((0, 1))]
    return life


def test_who_answers_may_load_for_ever() -> None:
    life = _asked()
    for _ in range(5):
        life.take(WorkerHeard(0, True, "train.py:7", ""))
        life.take(WorkerHeard(1, False, "train.py:7", ""))
        life.now += life.state.settings.timeouts.rejoin_timeout + 1.0
        life.take(NoNews(200.0, "busy"))
        assert life.asked(AskWorkers), "they are asked again"
        assert not life.asked(KillWorkers)


def test_who_does_not_answer_for_long_is_replaced() -> None:
    life = _asked()
    life.take(WorkerHeard(0, True, "train.py:7", ""))
    life.now += life.state.settings.timeouts.rejoin_timeout - 1.0
    assert not life.take(NoNews(120.0, "not in train")), "loading may hold Python's lock for long"
    life.now += 2.0
    life.take(NoNews(122.0, "not in train"))
    assert [kill.local_ranks for kill in life.asked(KillWorkers)] == [(1,)]
    (report,) = life.asked(Report)
    assert report.event == WorkerStuck("not in train for 122 s, and no answer for 60 s", [1])


@pytest.mark.parametrize(
    ("heard", "ends"),
    [
        (None, True),
        (WorkerHeard(0, True, "train.py:7", ""), True),
        (WorkerHeard(0, False, "train.py:9", ""), False),
    ],
)
def test_a_worker_that_does_not_leave_is_ended_unless_it_is_busy(
    heard: WorkerHeard | None, ends: bool
) -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason="node b lost"))
    life.take(left(1, 1))
    life.take(Alarm())
    assert life.asked(AskWorkers) == [AskWorkers((0,))]
    if heard:
        life.take(heard)
    else:
        life.now += 1.0
        life.take(Alarm())
        assert not life.asked(KillWorkers), "a slow machine makes a healthy worker late"
        assert life.asked(SetAlarm)
        life.now += 1.5
    life.take(Alarm())
    assert bool(life.asked(KillWorkers)) == ends


def test_a_busy_worker_of_a_node_that_leaves_gets_no_more_than_the_grace_again() -> None:
    life = Life().in_round()
    life.take(Asked(15))
    life.now += life.state.settings.timeouts.grace
    life.take(Alarm())
    assert life.asked(InterruptWorkers), "it has come to no commit"
    life.take(left(1, 1))
    for more, ends in ((2.0, False), (life.state.settings.timeouts.grace, True)):
        life.now += more
        life.take(Alarm())
        life.take(WorkerHeard(0, False, "train.py:9", "evaluation"))
        life.take(Alarm())
        assert [kill.local_ranks for kill in life.asked(KillWorkers)] == ([(0,)] if ends else [])
    (stuck,) = life.asked(KillWorkers)
    why = "it has come to no commit, and is at train.py:9 (--grace)"
    assert stuck.why == f"did not leave the broken round: {why}"


@pytest.mark.parametrize(
    ("heard", "ends"),
    [
        (WorkerHeard(0, False, "train.py:9", ""), True),
        (WorkerHeard(0, False, "train.py:9", "evaluation"), False),
    ],
)
def test_who_works_while_all_others_have_waited_is_ended_unless_it_says_why(
    heard: WorkerHeard, ends: bool
) -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason=f"no step for 62 s: {HANG} (--hang-timeout)"))
    life.take(left(1, 1))
    life.take(Alarm())
    life.take(heard)
    life.take(Alarm())
    assert [kill.local_ranks for kill in life.asked(KillWorkers)] == ([(0,)] if ends else [])
    assert all("train.py:9" in kill.why for kill in life.asked(KillWorkers))


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        (
            WorkerHeard(0, False, "train.py:9", ""),
            "no step for 161 s, and it is at train.py:9 (--hang-timeout)",
        ),
        (WorkerHeard(0, False, "train.py:9", "evaluation"), ""),
    ],
)
def test_who_hangs_is_found_also_in_a_round_that_has_broken_for_another_reason(
    heard: WorkerHeard, why: str
) -> None:
    life = Life().in_round()
    life.now += 100.0
    life.take(Switch(1, broken=True, reason="node b lost"))
    life.take(left(1, 1))

    def look(seconds: float) -> None:
        life.take(NoProgress(seconds, 30.0))
        life.take(Alarm())
        assert life.asked(AskWorkers)
        life.take(NoProgress(seconds, 30.0))
        life.take(heard)
        life.take(Alarm())

    look(131.0)
    assert not life.asked(KillWorkers), "it may have waited for others for most of that"
    life.now += 30.0
    look(161.0)
    whys = [f"did not leave the broken round: {why}"] if why else []
    assert [kill.why for kill in life.asked(KillWorkers)] == whys


def test_who_has_just_been_released_is_not_overdue() -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason="node b lost"))
    life.take(left(1, 1))
    life.now += 31.0
    life.take(NoProgress(31.0, 30.0))
    life.take(Alarm())
    life.take(NoProgress(31.1, 30.0))
    life.take(WorkerHeard(0, False, "train.py:9", ""))
    life.take(Alarm())
    assert not life.asked(KillWorkers), "its errors are on their way"


def test_a_busy_worker_is_ended_when_the_others_have_waited_for_too_long() -> None:
    life = Life().in_round()
    life.take(Switch(1, broken=True, reason="node b lost"))
    life.take(Alarm())
    life.take(WorkerHeard(0, False, "train.py:9", ""))
    life.take(WorkerHeard(1, False, "train.py:9", ""))
    life.now += SETTINGS.timeouts.rejoin_timeout
    life.take(Alarm())
    assert life.asked(KillWorkers)[0].local_ranks == (0, 1)


@pytest.mark.parametrize(
    ("heard", "guilty"),
    [
        ((WorkerHeard(0, True, "a", ""), WorkerHeard(1, False, "b.py:3", "")), (1,)),
        ((WorkerHeard(0, True, "a", ""),), (1,)),
        ((WorkerHeard(0, True, "a", ""), WorkerHeard(1, False, "b", "evaluation")), ()),
        ((WorkerHeard(0, True, "a", ""), WorkerHeard(1, True, "a", "")), ()),
    ],
)
def test_a_hang_is_blamed_on_who_does_not_wait_for_others(
    heard: tuple[WorkerHeard, ...], guilty: tuple[int, ...]
) -> None:
    life = Life().in_round()
    life.take(NoProgress(31.0, 30.0))
    assert life.asked(AskWorkers) == [AskWorkers((0, 1))]
    for one in heard:
        life.take(one)
        life.take(NoProgress(31.1, 30.0))
        assert not life.actions, "the others have had no time to answer"
    life.take(Surveyed(1, ()))
    life.now += 1.0
    life.take(NoProgress(32.0, 30.0))
    if len(heard) == 1:
        assert not life.actions, "a slow machine makes a healthy worker late"
        life.now += 1.5
        life.take(NoProgress(33.5, 30.0))
    kills = life.asked(KillWorkers)
    assert [kill.local_ranks for kill in kills] == ([guilty] if guilty else [])
    how = "hung at b.py:3" if len(heard) == 2 else "hung and does not answer"
    assert all(kill.why.startswith(f"{how}: no step for 3") for kill in kills)


def test_nobody_is_blamed_before_it_is_known_that_the_others_are_in_reach() -> None:
    life = Life().in_round()
    life.take(NoProgress(61.0, 30.0))
    assert life.asked(LookForMembers) == [LookForMembers(1)]
    life.now += 2.5
    assert not life.take(NoProgress(62.0, 30.0)), "it has not been answered"
    life.take(Surveyed(1, ()))
    life.take(NoProgress(62.1, 30.0))
    assert life.asked(KillWorkers)[0].local_ranks == (0, 1)


def test_a_node_that_is_busy_is_waited_for_and_the_time_counts_from_its_end() -> None:
    life = Life().in_round()

    def ask(seconds: float, busy: tuple[str, ...]) -> None:
        life.take(NoProgress(seconds, 30.0))
        assert life.asked(LookForMembers)
        for rank in (0, 1):
            life.take(WorkerHeard(rank, True, "a", ""))
        said = [one.event for one in life.take(Surveyed(1, (), busy)) if isinstance(one, Report)]
        assert said == ([RoundWaits(list(busy))] if busy else [])
        life.now += 1.0
        life.take(NoProgress(seconds + 1.0, 30.0))

    ask(61.0, ("b",))
    assert not life.actions, "it has said what it does"
    life.now += 28.0
    assert not life.take(NoProgress(90.0, 30.0)), "nor is it asked all the time"
    life.now += 5.0
    ask(95.0, ())
    assert not life.actions, "it was busy a short time ago"
    life.now += 30.0
    ask(126.0, ())
    assert life.asked(SayLeft) or life.asked(InterruptWorkers)


def test_who_does_not_reach_the_others_leaves_the_round_and_nothing_is_counted() -> None:
    life = Life().in_round()
    life.take(NoProgress(31.0, 30.0))
    life.take(Surveyed(1, ("c",)))
    assert life.asked(InterruptWorkers)
    assert not life.asked(KillWorkers)
    life.take(left(1, 0))
    life.take(left(1, 1))
    fault = life.asked(SayLeft)[0].fault
    assert (fault.kind, fault.signature, fault.consequence) == (LOST, CUT_OFF, True)
    assert fault.reason.endswith("does not reach c")
