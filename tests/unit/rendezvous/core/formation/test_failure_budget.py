"""What a broken round costs the job, and which report says why it broke."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS, RETRY_PAUSES
from elastic_runtime.protocol.records import (
    ASKED,
    CUT_OFF,
    FAILED,
    KILLED,
    LACKS_RESOURCES,
    LOST,
    PLANNED,
    START,
    FaultReport,
)
from elastic_runtime.protocol.round_records import Budget
from elastic_runtime.rendezvous.core.formation.failure_budget import RoundCost, assess, root_cause
from elastic_runtime.rendezvous.core.formation.retry_rules import USAGE

KINDS = (FAILED, KILLED, LOST, START, ASKED, PLANNED)


def _fault(kind: str, **fields: object) -> FaultReport:
    return FaultReport(1, kind, **{"reason": f"it was {kind}", **fields})  # type: ignore[arg-type]


ERROR = _fault(FAILED, signature="ValueError: x", reason="ValueError: x", step=7)
ECHO = _fault(FAILED, consequence=True, reason="connection reset by peer", step=7)
TOLD = _fault(PLANNED, step=7)


def judged(budget: Budget, count: int, *reports: FaultReport, planned: bool = False) -> RoundCost:
    """Judges the same round so many times in a row."""
    for _ in range(count):
        verdict = assess(budget, reports, members=2, max_restarts=3, planned=planned)
        budget = verdict.budget
    return verdict


@pytest.mark.parametrize(
    ("reports", "kind", "costs"),
    [
        ([ERROR, ECHO, TOLD], FAILED, 1),
        ([ECHO, ERROR], FAILED, 1),
        ([ERROR, replace(ERROR, rank=3)], FAILED, 1),
        ([_fault(KILLED), ERROR], KILLED, 0),
        ([_fault(LOST), ECHO, ERROR], LOST, 0),
        ([_fault(START), ECHO, TOLD], START, 0),
        ([_fault(ASKED), ECHO, TOLD], ASKED, 0),
        ([ECHO, TOLD], FAILED, 0),
        ([TOLD, TOLD], PLANNED, 0),
    ],
)
def test_a_round_costs_what_its_cause_costs(
    reports: list[FaultReport], kind: str, costs: int
) -> None:
    for order in (reports, reports[::-1]):
        verdict = assess(Budget(), order, members=3, max_restarts=3)
        assert verdict.cause is not None
        assert verdict.cause.kind == kind
        assert verdict.budget.failures == costs
        assert verdict.free is (costs == 0)
        assert not verdict.ends


def test_progress_makes_up_for_fruitless_rounds_and_a_planned_change_is_none() -> None:
    budget = Budget(best_step=50, fruitless=4)
    for report in (replace(ECHO, step=51), _fault(ASKED, step=51), replace(TOLD, step=51)):
        verdict = assess(budget, [report], members=2, max_restarts=3)
        assert (verdict.budget.fruitless, verdict.budget.best_step) == (0, 51)
        assert (verdict.ends, verdict.delay) == (False, 0.0)
    verdict = assess(budget, [TOLD], members=2, max_restarts=3)
    assert (verdict.ends, verdict.budget.fruitless) == (False, 4)


@pytest.mark.parametrize(
    ("report", "before", "useful"),
    [
        (_fault(KILLED, lifetime=6.0), Budget(), True),
        (_fault(KILLED, lifetime=1.0), Budget(), False),
        (_fault(FAILED, lifetime=31.0, signature="E"), Budget(signature="E"), True),
        (_fault(FAILED, lifetime=6.0, signature="E"), Budget(signature="E"), False),
        (_fault(FAILED, lifetime=6.0, signature="F"), Budget(signature="E"), True),
    ],
)
def test_progress_of_a_script_that_reports_no_steps(
    report: FaultReport, before: Budget, useful: bool
) -> None:
    verdict = assess(before, [report], members=2, max_restarts=9)
    assert (verdict.budget.fruitless == 0) is useful


@pytest.mark.parametrize("kind", [KILLED, LOST])
def test_inner_steps_that_ranks_keep_are_progress(kind: str) -> None:
    budget = Budget(best_step=3)
    for inner in range(1, 3 * MAX_FRUITLESS_ROUNDS):
        broken = [_fault(kind, step=3, inner=inner), replace(TOLD, step=3, inner=inner - 1)]
        verdict = assess(budget, broken, members=2, max_restarts=0)
        budget = verdict.budget
        assert not verdict.ends
        assert (budget.best_step, budget.best_inner, budget.fruitless) == (3, inner, 0)


def test_rounds_that_end_at_the_same_inner_step_are_fruitless() -> None:
    before, killed = Budget(best_step=3), _fault(KILLED, step=3, inner=5)
    ends = [judged(before, count, killed).ends for count in range(1, MAX_FRUITLESS_ROUNDS + 2)]
    assert ends == [False] * MAX_FRUITLESS_ROUNDS + [True]


@pytest.mark.parametrize(
    ("reached", "before", "after"),
    [
        ((4, 1), Budget(best_step=3, best_inner=90), (4, 1, 0)),  # however few inner steps follow
        ((3, 90), Budget(best_step=4, best_inner=1), (4, 1, 1)),
    ],
)
def test_a_higher_step_is_progress_and_inner_steps_after_a_lower_one_are_none(
    reached: tuple[int, int], before: Budget, after: tuple[int, int, int]
) -> None:
    killed = _fault(KILLED, step=reached[0], inner=reached[1])
    budget = assess(before, [killed], members=2, max_restarts=0).budget
    assert (budget.best_step, budget.best_inner, budget.fruitless) == after


@pytest.mark.parametrize(
    "broken",
    [
        [_fault(ASKED, step=3, inner=6)],  # nothing has failed
        [_fault(FAILED, step=3, inner=6, consequence=True, signature=CUT_OFF)],
    ],
)
def test_inner_steps_make_up_for_fruitless_rounds_whatever_ended_the_round(
    broken: list[FaultReport],
) -> None:
    before = Budget(best_step=3, best_inner=5, fruitless=4)
    verdict = assess(before, broken, members=2, max_restarts=0, cut="b does not reach c")
    assert (verdict.budget.best_inner, verdict.budget.fruitless) == (6, 0)


def test_waiting_for_a_worker_that_has_no_room_is_no_progress() -> None:
    refused = _fault(START, signature=LACKS_RESOURCES, lifetime=200.0)
    waiting = judged(Budget(), MAX_FRUITLESS_ROUNDS - 1, refused, replace(TOLD, step=-1))
    assert (waiting.ends, waiting.budget.failures) == (False, 0)
    assert judged(waiting.budget, 1, refused).ends


reports = st.builds(
    FaultReport,
    round=st.just(1),
    kind=st.sampled_from(KINDS),
    reason=st.just("because"),
    signature=st.sampled_from(("", "E", "F")),
    step=st.integers(-1, 30),
    inner=st.integers(0, 3),
    lifetime=st.floats(0.0, 100.0),
    consequence=st.booleans(),
)
rounds = st.lists(st.lists(reports, max_size=4), max_size=40)


@given(rounds, st.integers(0, 4))
def test_every_history_of_faults_is_accounted_for(
    history: list[list[FaultReport]], max_restarts: int
) -> None:
    budget = Budget()
    for broken in history:
        verdict = assess(budget, broken, members=4, max_restarts=max_restarts)
        after = verdict.budget
        assert 0 <= after.failures - budget.failures <= 1
        reached = [(report.step, report.inner) for report in broken]
        best = max([(budget.best_step, budget.best_inner), *reached])
        assert (after.best_step, after.best_inner) == best
        counts = [(b.failures, b.killed, b.lost, b.planned) for b in (budget, after)]
        assert all(new >= old for old, new in zip(*counts, strict=True))
        assert 0.0 <= verdict.delay <= RETRY_PAUSES.longest
        assert verdict.ends or after.failures <= max_restarts
        assert verdict.ends or after.fruitless < MAX_FRUITLESS_ROUNDS
        if verdict.ends:
            assert verdict.reason
            return
        budget = after


@given(st.lists(reports, min_size=1, max_size=5), st.randoms())
def test_the_cause_does_not_depend_on_the_order(broken: list[FaultReport], chance: object) -> None:
    mixed = list(broken)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = root_cause(broken), root_cause(mixed)
    assert one is not None and other is not None
    tells = attrgetter("kind", "consequence", "lifetime")
    assert tells(one) == tells(other)
    own = [report for report in broken if report.kind != PLANNED and not report.consequence]
    assert not own or one in own


@given(st.lists(st.sampled_from(KINDS), min_size=30, max_size=30))
def test_a_job_that_never_gets_anywhere_ends(kinds: list[str]) -> None:
    """Whatever breaks it: only changes that were asked for are no sign of trouble."""
    budget = Budget(best_step=10)
    for kind in kinds:
        verdict = assess(budget, [_fault(kind, step=3)], members=1, max_restarts=100)
        if verdict.ends:
            return
        budget = verdict.budget
    assert sum(kind not in (ASKED, PLANNED) for kind in kinds) < MAX_FRUITLESS_ROUNDS


# ---------------------------------------------------------------- causes

PEER_LOST = FaultReport(1, FAILED, "lost a peer", signature="RuntimeError", consequence=True)
BYSTANDER = FaultReport(1, PLANNED, "called back")


def test_a_node_that_was_called_back_does_not_hide_the_echo_that_broke_the_round() -> None:
    verdict = assess(Budget(), (BYSTANDER, PEER_LOST), members=2, max_restarts=3)
    assert verdict.cause == PEER_LOST
    assert verdict.budget.fruitless == 1
    assert judged(Budget(), MAX_FRUITLESS_ROUNDS, BYSTANDER, PEER_LOST).ends


def test_echoes_in_a_planned_change_are_part_of_it() -> None:
    verdict = judged(Budget(), 20, BYSTANDER, PEER_LOST, planned=True)
    assert not verdict.ends
    assert (verdict.budget.fruitless, verdict.budget.planned) == (0, 20)


def test_an_own_failure_in_a_planned_change_is_a_failure() -> None:
    own = replace(PEER_LOST, consequence=False, signature="ValueError: x")
    assert assess(Budget(), (BYSTANDER, own), members=2, max_restarts=3, planned=True).free is False


def test_a_mistake_of_the_users_explains_all_that_followed() -> None:
    usage = FaultReport(4, FAILED, "commit() outside", signature=f"{USAGE}commit()", lifetime=9.0)
    crash = FaultReport(4, FAILED, "a worker was killed", lifetime=0.5)
    echo = FaultReport(4, FAILED, "Connection closed by peer", consequence=True, lifetime=0.1)
    assert root_cause([crash, echo, usage]) is usage
    assert root_cause([echo, crash]) is crash
    assert root_cause([]) is None
