"""How workers that keep their process enter a round, and how their node leaves it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_state import (
    Phase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Alarm,
    ForkServerReady,
    StartForNextRound,
    StopWorkers,
    WorkerExited,
)
from elastic_runtime.protocol.messages import (
    Interrupt,
)
from elastic_runtime.rendezvous.core.membership_events import (
    Done,
    Join,
    LeftRound,
)
from elastic_runtime.rendezvous.core.notices import (
    Excluded,
    Switch,
)
from tests.unit.agent.lifecycle.in_place_agent import (
    SETTINGS,
    InPlaceAgent,
    killed,
    left,
    ready,
    returned,
    sealed,
)


def test_a_broken_round_is_left_without_ending_a_process() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=True, reason="node b lost"))
    assert agent.told(Interrupt)[0].local_ranks == (0, 1)
    assert not agent.asked(StopWorkers)
    agent.take(left(1, 0))
    assert not agent.said(LeftRound)
    agent.take(left(1, 1))
    assert agent.said(LeftRound)[0].fault.reason == "node b lost"
    assert agent.state.phase is Phase.WAITING


def test_ranks_that_do_not_agree_in_time_are_interrupted() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Switch(1, broken=False, reason="node c joins"))
    agent.take(Alarm())
    assert agent.told(Interrupt)


def test_an_excluded_node_asks_in_again_with_the_same_processes() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(Excluded("the job went on without this node"))
    assert agent.told(Interrupt)
    agent.take(left(1, 0))
    agent.take(left(1, 1))
    assert agent.said(Join) == [Join(workers=2)]
    assert not agent.asked(StartForNextRound)


@pytest.mark.parametrize("ended", [False, True])
def test_a_node_that_is_excluded_at_its_end_joins_as_a_new_one(ended: bool) -> None:
    """It was suspended, say: the others have begun again, and it would wait for ever."""
    agent = InPlaceAgent(replace(SETTINGS, workers=1))
    for event in (ForkServerReady(), sealed(1, workers=1), ready(0), returned(0, 1)):
        agent.take(event)
    if ended:
        agent.take(WorkerExited(1, 0, 0))
    agent.take(Excluded("the job went on without this node"))
    if not ended:
        assert agent.asked(StopWorkers)
        agent.take(WorkerExited(1, 0, -15))
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]
    assert not agent.said(Join)  # with nothing to offer yet
    agent.take(ready(0))
    assert agent.said(Join) == [Join(workers=1)]


def test_a_worker_that_returns_from_a_broken_round_does_not_end_it_well() -> None:
    # A peer died when all ranks had returned: this one no longer notices, but the others do.
    agent = InPlaceAgent(replace(SETTINGS, workers=1))
    for event in (ForkServerReady(), sealed(1, workers=1), ready(0)):
        agent.take(event)
    agent.take(Switch(1, broken=True, reason="worker 1 was killed on b"))
    agent.take(returned(0, 1))
    assert agent.asked(StopWorkers)
    agent.take(WorkerExited(1, 0, 0))
    assert not agent.said(Done)
    assert agent.said(LeftRound)[0].stays
    assert agent.asked(StartForNextRound) == [StartForNextRound((0,))]


def test_a_round_is_not_left_while_a_worker_that_has_returned_still_runs() -> None:
    agent = InPlaceAgent().in_round()
    agent.take(returned(0, 1))
    agent.take(killed(1, 1))
    assert not agent.said(LeftRound)
    assert agent.asked(StopWorkers)
