"""How a round ends on this node, and how its agent does."""

from __future__ import annotations

import signal

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_state import Phase
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Finish,
    LeaveRequested,
    StopWorkers,
    WorkerExited,
)
from elastic_runtime.agent.lifecycle.termination import leave_message
from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED
from elastic_runtime.protocol.records import (
    ASKED,
    LACKS_RESOURCES,
    START,
    FaultReport,
    OutcomeRecord,
)
from elastic_runtime.rendezvous.core.membership_events import Done, Goodbye, LeftRound
from elastic_runtime.rendezvous.core.notices import (
    Ended,
)
from tests.unit.agent.lifecycle.restart_agent import (
    ended_by_us,
    failed,
    hello,
    running,
)


def test_the_cause_is_reported_and_not_its_echo() -> None:
    echo = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    walk = running(failed(0, echo), failed(1, "ValueError: the cause"))
    assert walk.said(LeftRound).fault.signature == "ValueError: the cause"


def test_all_workers_ending_well_is_done_and_not_left() -> None:
    walk = running(WorkerExited(1, 0, 0), WorkerExited(1, 1, 0))
    assert walk.said(Done).round == 1
    assert walk.unsaid(LeftRound)
    assert walk.state.phase is Phase.DONE


def test_what_fails_once_the_node_was_asked_to_leave_is_no_failure_of_the_script() -> None:
    walk = running(hello(1, 0), hello(1, 1), LeaveRequested(signal.SIGTERM))
    walk.play(failed(0, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."))
    walk.play(ended_by_us(1))
    assert (walk.said(LeftRound).fault.kind, walk.said(LeftRound).stays) == (ASKED, False)


def test_the_end_of_the_job_ends_the_agent_with_its_code() -> None:
    walk = running(WorkerExited(1, 0, 0), WorkerExited(1, 1, 0))
    walk.play(Ended(OutcomeRecord("life", True, EXIT_DONE, "well")))
    assert walk.one(Finish).exit_code == EXIT_DONE
    walk = running(Ended(OutcomeRecord("life", False, EXIT_FAILED, "budget spent")))
    assert walk.none(Finish)
    walk.play(ended_by_us(0), ended_by_us(1))
    assert walk.one(Finish).exit_code == EXIT_FAILED
    assert walk.said(Goodbye)


def test_a_node_without_room_for_its_workers_leaves_and_says_why() -> None:
    fault = FaultReport(1, START, "worker 0 cannot be started: no room", signature=LACKS_RESOURCES)
    walk = running(WorkerExited(1, 0, 127, fault=fault))
    assert walk.one(StopWorkers)
    walk.play(ended_by_us(1))
    left = walk.said(LeftRound)
    assert (left.stays, left.fault) == (False, fault)
    finish = walk.one(Finish)
    assert (finish.exit_code, finish.message) == (EXIT_FAILED, fault.reason)


@pytest.mark.parametrize(
    ("saved", "accompanied", "words"),
    [
        (-1, False, "node1 left on request"),
        (0, False, "node1 left on request; step 0 is saved"),
        (7, True, "node1 left on request; step 7 is saved; other nodes may continue"),
    ],
)
def test_a_node_that_leaves_says_of_others_what_it_knows(
    saved: int, accompanied: bool, words: str
) -> None:
    assert leave_message("left on request", "node1", saved, accompanied) == words
