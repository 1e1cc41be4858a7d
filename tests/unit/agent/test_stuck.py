"""Workers that never come to ``train``: only who does not answer is replaced, and not soon."""

from __future__ import annotations

from elastic_runtime.agent.life import (
    AskWorkers,
    KillWorkers,
    NotInTrain,
    Report,
    WorkerHeard,
)
from tests.unit.agent.test_inplace import Life


def _asked() -> Life:
    life = Life().in_round()
    life.take(NotInTrain(61.0))
    assert life.asked(AskWorkers) == [AskWorkers((0, 1))]
    return life


def test_who_answers_may_load_for_ever() -> None:
    life = _asked()
    for _ in range(5):
        life.take(WorkerHeard(0, True, "train.py:7", ""))
        life.take(WorkerHeard(1, False, "train.py:7", ""))
        life.now += life.state.settings.rejoin + 1.0
        life.take(NotInTrain(200.0))
        assert life.asked(AskWorkers), "they are asked again"
        assert not life.asked(KillWorkers)


def test_who_does_not_answer_for_long_is_replaced() -> None:
    life = _asked()
    life.take(WorkerHeard(0, True, "train.py:7", ""))
    life.now += life.state.settings.rejoin - 1.0
    assert not life.take(NotInTrain(120.0)), "loading may hold Python's lock for long"
    life.now += 2.0
    life.take(NotInTrain(122.0))
    assert [kill.local_ranks for kill in life.asked(KillWorkers)] == [(1,)]
    (report,) = life.asked(Report)
    assert report.fields["why"] == "not in train after 122 s, and no answer for 60 s"
