"""Which report says why a round broke, and what follows for the budget."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS
from elastic_runtime.protocol.records import ASKED, FAILED, KILLED, LOST, PLANNED, FaultReport
from elastic_runtime.protocol.round_records import Budget
from elastic_runtime.rendezvous.core.formation.failure_budget import RoundCost, assess, root_cause
from elastic_runtime.rendezvous.core.formation.retry_rules import USAGE

ECHO = FaultReport(1, FAILED, "lost a peer", signature="RuntimeError", consequence=True)
BYSTANDER = FaultReport(1, PLANNED, "called back")


def rounds(budget: Budget, count: int, *reports: FaultReport, planned: bool = False) -> RoundCost:
    """Judges the same round so many times in a row."""
    for _ in range(count):
        verdict = assess(budget, reports, members=2, max_restarts=3, planned=planned)
        budget = verdict.budget
    return verdict


def test_a_node_that_was_called_back_does_not_hide_the_echo_that_broke_the_round() -> None:
    verdict = assess(Budget(), (BYSTANDER, ECHO), members=2, max_restarts=3)
    assert verdict.cause == ECHO
    assert verdict.budget.fruitless == 1
    assert rounds(Budget(), MAX_FRUITLESS_ROUNDS, BYSTANDER, ECHO).ends


def test_echoes_in_a_planned_change_are_part_of_it() -> None:
    verdict = rounds(Budget(), 20, BYSTANDER, ECHO, planned=True)
    assert not verdict.ends
    assert (verdict.budget.fruitless, verdict.budget.planned) == (0, 20)


def test_an_own_failure_in_a_planned_change_is_a_failure() -> None:
    own = replace(ECHO, consequence=False, signature="ValueError: x")
    assert assess(Budget(), (BYSTANDER, own), members=2, max_restarts=3, planned=True).free is False


def test_losses_that_cost_no_progress_never_end_a_job() -> None:
    budget = Budget()
    for number in range(20):
        lost = FaultReport(number, LOST, "node b lost", signature=LOST)
        survivor = replace(BYSTANDER, step=100 * (number + 1), lifetime=3.0)
        verdict = assess(budget, (lost, survivor), members=2, max_restarts=0)
        assert (verdict.ends, verdict.delay, verdict.budget.fruitless) == (False, 0.0, 0)
        budget = verdict.budget


def test_progress_until_a_planned_change_counts() -> None:
    killed = FaultReport(1, KILLED, "killed", signature="SIGKILL", step=10)
    unlucky = rounds(Budget(best_step=10), 3, killed).budget
    assert unlucky.fruitless == 3
    asked = FaultReport(1, ASKED, "asked", step=50)
    assert assess(unlucky, (asked, BYSTANDER), members=2, max_restarts=3).budget.fruitless == 0


def test_a_mistake_of_the_users_explains_all_that_followed() -> None:
    usage = FaultReport(4, FAILED, "commit() outside", signature=f"{USAGE}commit()", lifetime=9.0)
    crash = FaultReport(4, FAILED, "a worker was killed", lifetime=0.5)
    echo = FaultReport(4, FAILED, "Connection closed by peer", consequence=True, lifetime=0.1)
    assert root_cause([crash, echo, usage]) is usage
    assert root_cause([echo, crash]) is crash
    assert root_cause([]) is None
