"""Whether a broken round is tried again, and after which pause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS
from elastic_runtime.protocol.records import FAILED, KILLED, LOST, PLANNED, START, FaultReport
from elastic_runtime.protocol.round_records import Budget
from elastic_runtime.rendezvous.core.formation.failure_budget import assess
from elastic_runtime.rendezvous.core.formation.retry_rules import (
    CERTAIN_TO_REPEAT,
    USAGE,
    pause_before_retry,
    why_no_retry,
)


def _fault(kind: str, **fields: object) -> FaultReport:
    return FaultReport(1, kind, **{"reason": f"it was {kind}", **fields})  # type: ignore[arg-type]


ERROR = _fault(FAILED, signature="ValueError: x", reason="ValueError: x", step=7)
ECHO = _fault(FAILED, consequence=True, reason="connection reset by peer", step=7)
TOLD = _fault(PLANNED, step=7)


def test_the_budget_is_spent_one_failure_at_a_time() -> None:
    budget = Budget()
    for number in range(1, 4):
        verdict = assess(budget, [replace(ERROR, step=number)], members=1, max_restarts=3)
        assert not verdict.ends
        budget = verdict.budget
    last = assess(budget, [replace(ERROR, step=9)], members=1, max_restarts=3)
    assert last.ends
    assert last.reason == "ValueError: x; all 3 restarts are used (--max-restarts)"


def test_no_restart_may_be_allowed() -> None:
    verdict = assess(Budget(), [ERROR], members=1, max_restarts=0)
    assert verdict.ends
    assert verdict.reason == "ValueError: x; no restart is allowed (--max-restarts)"


@pytest.mark.parametrize("report", [_fault(KILLED), _fault(LOST), _fault(START), ECHO])
def test_rounds_without_progress_end_the_job_whatever_ended_them(report: FaultReport) -> None:
    budget, pauses = Budget(best_step=50), []
    for _ in range(MAX_FRUITLESS_ROUNDS - 1):
        verdict = assess(budget, [report, TOLD], members=2, max_restarts=3)
        assert not verdict.ends
        pauses.append(verdict.delay)
        budget = verdict.budget
    assert pauses == [0.0, 0.5, 1.0, 2.0]
    assert assess(budget, [report, TOLD], members=2, max_restarts=3).ends


@pytest.mark.parametrize(
    ("reports", "before", "ends"),
    [
        # The same error at once on every node of several.
        ([_fault(FAILED, signature="E")] * 2, Budget(), True),
        # One node alone gets a second try, unless the error is certain to come again.
        ([_fault(FAILED, signature="E")], Budget(), False),
        ([_fault(FAILED, signature="E")], Budget(signature="E"), True),
        ([_fault(FAILED, signature="ImportError: x")], Budget(), True),
        # Different errors, or one node that was only told to stop.
        ([_fault(FAILED, signature="E"), _fault(FAILED, signature="F")], Budget(), False),
        ([_fault(FAILED, signature="E"), _fault(PLANNED)], Budget(), False),
        ([_fault(FAILED, signature="E"), _fault(PLANNED)], Budget(signature="E"), False),
        ([_fault(FAILED, signature="E"), ECHO], Budget(signature="E"), False),
        # After a step, or a long life, it is another matter.
        ([_fault(FAILED, signature="E", step=1)] * 2, Budget(), False),
        ([_fault(FAILED, signature="E", lifetime=12.0)] * 2, Budget(), False),
        ([_fault(FAILED, signature="E")] * 2, Budget(best_step=3), False),
    ],
)
def test_a_script_that_cannot_even_begin_ends_the_job(
    reports: list[FaultReport], before: Budget, ends: bool
) -> None:
    assert assess(before, reports, members=len(reports), max_restarts=9).ends is ends


def test_one_rank_that_fails_again_and_again_on_one_node_has_all_its_restarts() -> None:
    budget = Budget()
    for _ in range(3):
        report = _fault(FAILED, signature="ValueError: x", lifetime=3.0, rank=1)
        verdict = assess(budget, [report], members=1, workers=2, max_restarts=3)
        assert not verdict.ends
        budget = verdict.budget
    last = assess(budget, [report], members=1, workers=2, max_restarts=3)
    assert last.reason == "it was failed; all 3 restarts are used (--max-restarts)"


def test_what_cannot_be_done_is_not_tried_again_whatever_it_cost() -> None:
    impossible = _fault(FAILED, signature=f"{USAGE}commit()", reason="commit() outside", step=70)
    why = why_no_retry(
        Budget(), Budget(), [impossible], impossible, members=4, workers=8, max_restarts=3
    )
    assert why == "commit() outside"


@pytest.mark.parametrize("error", CERTAIN_TO_REPEAT)
def test_an_error_that_is_certain_to_come_again_ends_a_job_of_one_node_at_once(error: str) -> None:
    report = _fault(FAILED, signature=f"{error}: x", lifetime=1.0)
    for workers in (1, 8):
        verdict = assess(Budget(), [report], members=1, workers=workers, max_restarts=9)
        assert verdict.reason == "it was failed; restarting will not fix this"


def test_pauses_grow_without_progress_and_have_an_end() -> None:
    pauses = [pause_before_retry(Budget(fruitless=number), free=False) for number in range(5)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert pause_before_retry(Budget(fruitless=1), free=True) == 0.0
    assert pause_before_retry(Budget(fruitless=50), free=True) == 30.0
