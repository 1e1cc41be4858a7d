"""What an agent knows of its workers that keep their process."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AgentState,
    InPlace,
    InPlaceWorker,
    LifecycleSettings,
    WorkerPhase,
)

READY, IN_ROUND = WorkerPhase.READY, WorkerPhase.IN_ROUND
WORKERS = InPlace(
    {
        0: InPlaceWorker(READY),
        1: InPlaceWorker(IN_ROUND, since=5),
        2: InPlaceWorker(IN_ROUND, since=3),
        3: InPlaceWorker(),
    }
)


def test_the_oldest_workers_come_first() -> None:
    assert WORKERS.ranks_in(READY, IN_ROUND) == (2, 1, 0)
    assert WORKERS.without(2).ranks_in(IN_ROUND) == (1,)
    assert WORKERS.ranks_in(WorkerPhase.RETURNED) == ()


def test_too_few_workers_are_none() -> None:
    for fewest, available in ((3, 3), (4, 0)):
        settings = LifecycleSettings(workers=4, min_workers=fewest)
        state = AgentState(settings, in_place=WORKERS)
        assert state.available == available
        assert replace(state, in_place=None).available == 0
