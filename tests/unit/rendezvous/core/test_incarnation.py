"""How a job begins, and how it comes back into a store that has forgotten it."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.protocol.records import GONE, JOB, JobRecord
from elastic_runtime.rendezvous.core.incarnation import dead_keys
from elastic_runtime.rendezvous.core.membership_events import Tick
from elastic_runtime.rendezvous.core.node_state import Timer
from tests.unit.rendezvous.node_under_test import LIFE, POLICY, NodeUnderTest, job, node, sealed


def test_the_first_node_writes_down_what_the_job_is() -> None:
    written = NodeUnderTest().sees(node("a")).settle().sees(node("a")).written(JobRecord, JOB)
    assert written is not None
    assert (written.min_nodes, written.max_nodes, written.entry) == (1, 4, "train.py")
    assert written.incarnation == "a.0"


def test_a_job_that_has_run_before_may_still_be_training_somewhere() -> None:
    tested = NodeUnderTest(policy=replace(POLICY, resuming=True))
    tested.sees(node("a")).settle().sees(node("a"))
    assert tested.written(JobRecord, JOB) is None
    assert tested.state.timers[Timer.RESUMING] == tested.now
    assert tested.wake <= tested.now + POLICY.timeouts.fence_timeout


def test_a_node_that_is_alive_holds_up_the_next_life() -> None:
    former = sealed(3, "b")
    tested = NodeUnderTest().sees(job(), node("a"), node("b", incarnation=LIFE), former).settle()
    tested.sees(job(), node("a"), node("b", incarnation=LIFE), former)
    assert tested.written(JobRecord, JOB) is None


def test_the_next_life_keeps_the_numbers_of_rounds() -> None:
    former = sealed(3, "b")
    tested = NodeUnderTest().sees(job(), node("a"), former).settle().sees(job(), node("a"), former)
    tested.feed(Tick(), after=POLICY.timeouts.fence_timeout + 1)
    written = tested.written(JobRecord, JOB)
    assert written is not None
    assert (written.first_round, written.incarnation) == (3, "a.3")


def test_only_the_keys_of_nodes_that_are_known_to_be_gone_are_removed() -> None:
    tested = NodeUnderTest().sees(job(), node("a"), node("b"), node("c", status=GONE), node("d"))
    tested.state = replace(tested.state, reach=replace(tested.state.reach, dead={"d": "refused"}))
    assert dead_keys(tested.state, frozenset()) == ("nodes/c", "nodes/d")
    assert dead_keys(tested.state, frozenset({"d"})) == ("nodes/c",)
