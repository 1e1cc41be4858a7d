"""What an agent tells people of its job, and what of it is kept in the store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.lifecycle_state import AgentState, LifecycleSettings, Phase
from elastic_runtime.agent.metrics.job_reporter import JobReporter
from elastic_runtime.events.job_events import Hint
from elastic_runtime.events.node_events import NodeLeaving
from elastic_runtime.events.round_events import RoundRecovered, RoundSealed
from elastic_runtime.protocol.messages import Note
from tests.unit.agent.jobs import ROUND, job

if TYPE_CHECKING:
    from elastic_runtime.events import Event
    from elastic_runtime.protocol.records import EventRecord

SEALED = RoundSealed(3, workers=2, nodes=2)


class Told:
    """A reporter of one node, what it has emitted, and what it has kept."""

    def __init__(self, node: str = "a") -> None:
        self.events: list[Event] = []
        self.kept: list[tuple[str, EventRecord]] = []
        self.state = AgentState(
            LifecycleSettings(1), Phase.RUNNING, round=ROUND, group_rank=ROUND.rank_of(node)
        )
        self.reporter = JobReporter(
            job(node_name=node, max_nodes=2, max_restarts=0),
            lambda event, /, **fields: self.events.append(event),  # type: ignore[arg-type]
            None,
            keep=lambda key, record: self.kept.append((key, record)),
            node=lambda: node,
            state=lambda: self.state,
            progress=lambda: (7, 7, 0.0),
        )


def test_what_holds_for_the_whole_job_is_kept_by_its_first_node_only() -> None:
    first, second = Told("a"), Told("b")
    for told in (first, second):
        told.reporter.tell(SEALED)
        told.reporter.tell(NodeLeaving("asked to"))
        assert told.events == [SEALED, NodeLeaving("asked to")], "all of them emit it"
    assert [record.name for _, record in first.kept] == ["round.sealed", "node.leaving"]
    assert [record.name for _, record in second.kept] == ["node.leaving"]
    assert {record.round for _, record in first.kept} == {3}


def test_a_recovery_ends_with_the_first_step_of_the_next_round() -> None:
    told = Told()
    told.reporter.interrupted()
    first = Note("step.first", 0, 3, {"step": 8})
    told.reporter.note(first)
    assert not told.events, "that step was made before the round was left"
    told.state = replace(told.state, round=replace(ROUND, number=4))
    told.reporter.note(replace(first, round=4))
    told.reporter.note(replace(first, round=4))
    (recovered,) = told.events
    assert isinstance(recovered, RoundRecovered)
    assert (recovered.round, recovered.step) == (4, 8)


def test_a_hint_is_given_once_and_by_one_node() -> None:
    first, second = Told("a"), Told("b")
    for told in (first, second):
        told.reporter.give_hints()
        told.reporter.give_hints()
    assert [event.about for event in first.events if isinstance(event, Hint)] == ["max-restarts"]
    assert not second.events
