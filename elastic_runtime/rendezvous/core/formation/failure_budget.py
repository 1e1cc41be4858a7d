"""What a broken round costs the job: its cause, and whether it is a failure that counts: pure.

One budget serves the whole job and travels in the round's record, so that a round's end is
counted exactly once, in the same transaction that seals the next round. ``retry_rules`` decides
with it whether and when the job tries again.

The rules:

- One round that broke is at most one failure, however many workers it took with it.
- A killed worker, a lost node or a planned change costs nothing. When one is among the reports,
  errors of other workers are its echo.
- *Progress* is a higher step than ever before, or as high a one with more inner steps, which ranks
  that train alone keep; for scripts that report no steps it is a long enough run, or an error that
  has changed. Rounds in a row without progress are counted whatever ended them.
- A worker that could not be started for lack of resources costs nothing, but the time that the
  others have waited for it is no progress.
- A round whose members no longer reach each other costs nothing and is no round without progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.limits import RUN_THAT_COUNTS, RUN_THAT_COUNTS_IF_KILLED
from elastic_runtime.protocol.records import (
    ASKED,
    CUT_OFF,
    FAILED,
    HANGS,
    KILLED,
    LACKS_RESOURCES,
    LOST,
    PLANNED,
    START,
    FaultReport,
)
from elastic_runtime.rendezvous.core.formation.retry_rules import (
    is_usage_error,
    pause_before_retry,
    why_no_retry,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.protocol.round_records import Budget


_TELLING = {KILLED: 0, LOST: 1, ASKED: 2, FAILED: 3, START: 4}


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What follows from a broken round.

    Attributes:
        budget: for the next round.
        ends: the job is over, failed.
        reason: why it ends, or why the round broke; one line for people.
        delay: seconds to wait before the next round, counted from the break.
        cause: the report that tells most; None if there is none.
        free: it costs no restart.
    """

    budget: Budget
    ends: bool
    reason: str
    delay: float
    cause: FaultReport | None
    free: bool


def root_cause(reports: Sequence[FaultReport]) -> FaultReport | None:
    """The report that tells most about why the round broke.

    Errors that only echo the end of a peer come after all causes, and nodes that left on
    request come last.
    """
    return min(
        reports,
        key=lambda report: (
            report.kind == PLANNED,
            not is_usage_error(report),  # nothing else can have caused it
            report.consequence,
            _TELLING.get(report.kind, 9),
            report.lifetime,
        ),
        default=None,
    )


def assess(
    budget: Budget,
    reports: Sequence[FaultReport],
    *,
    members: int,
    max_restarts: int,
    workers: int = 0,
    planned: bool = False,
    cut: str = "",
) -> RoundCost:
    """Judges a round that is over.

    Args:
        budget: as it was when the round was sealed.
        reports: one per member that said why it left, and one per member that was lost.
        members: how many nodes the round had.
        max_restarts: failures of user code that the job may have.
        workers: how many workers all its nodes had together; 0: one each.
        planned: all were ordered to leave for a change of the membership, so that errors which
            only echo the end of a peer are part of it.
        cut: which members did not reach each other, for people; "": all did, as far as is known.

    Returns:
        The new budget, and whether, why and when to continue.
    """
    if cut and not names_cause(reports):
        return _cut_off(budget, reports, cut)
    cause = root_cause(reports)
    if cause is None or cause.kind in (ASKED, PLANNED) or (planned and cause.consequence):
        return _no_fault(budget, reports, cause)
    free = cause.kind != FAILED or cause.consequence
    progress = _made_progress(budget, reports, cause, free)
    after = replace(
        _with_best(budget, reports),
        failures=budget.failures + (0 if free else 1),
        fruitless=0 if progress else budget.fruitless + 1,
        signature=cause.signature,
        killed=budget.killed + (cause.kind == KILLED),
        lost=budget.lost + (cause.kind == LOST),
    )
    end = why_no_retry(
        budget,
        after,
        reports,
        cause,
        members=members,
        workers=workers or members,
        max_restarts=max_restarts,
    )
    pause = pause_before_retry(after, free)
    return RoundCost(after, bool(end), end or cause.reason, pause, cause, free)


def names_cause(reports: Sequence[FaultReport]) -> bool:
    """Whether these reports name what broke the round: a death, a failure, a worker that hangs or
    did not start, a request. Otherwise they only say that members missed each other."""
    vague = [
        report
        for report in reports
        if report.signature in (HANGS, CUT_OFF) or (report.consequence and report.kind != START)
    ]
    named = [report for report in reports if report.kind != PLANNED and report not in vague]
    return bool(named) or not vague


def _cut_off(budget: Budget, reports: Sequence[FaultReport], cut: str) -> RoundCost:
    """The network was cut: that says nothing about the script, nor about the rounds to come."""
    after = replace(_with_best(budget, reports), lost=budget.lost + 1)
    if reports and _made_progress(budget, reports, reports[0], free=True):
        after = replace(after, fruitless=0)
    return RoundCost(after, False, cut, 0.0, None, True)


def _no_fault(
    budget: Budget, reports: Sequence[FaultReport], cause: FaultReport | None
) -> RoundCost:
    """A change that was wanted: it costs nothing, and what was reached until then counts."""
    after = replace(_with_best(budget, reports), planned=budget.planned + 1)
    if cause is not None and _made_progress(budget, reports, cause, free=True):
        after = replace(after, fruitless=0)
    reason = cause.reason if cause else ""
    return RoundCost(after, False, reason, 0.0, cause, True)


def _with_best(budget: Budget, reports: Sequence[FaultReport]) -> Budget:
    reached = max(_best(budget), _reached(reports))
    lifetime = max((report.lifetime for report in reports), default=0.0)
    return replace(
        budget,
        best_step=reached[0],
        best_inner=reached[1],
        longest=max(budget.longest, lifetime),
    )


_NOWHERE = (-1, 0)


def _best(budget: Budget) -> tuple[int, int]:
    return budget.best_step, budget.best_inner


def _reached(reports: Sequence[FaultReport]) -> tuple[int, int]:
    return max(((report.step, report.inner) for report in reports), default=_NOWHERE)


def _made_progress(
    budget: Budget, reports: Sequence[FaultReport], cause: FaultReport, free: bool
) -> bool:
    reached, best = _reached(reports), _best(budget)
    if max(reached, best) > _NOWHERE:
        return reached > best
    if cause.signature == LACKS_RESOURCES:
        return False  # however long the others have waited for the worker that never came
    lifetime = max(report.lifetime for report in reports)
    if lifetime >= (RUN_THAT_COUNTS_IF_KILLED if free else RUN_THAT_COUNTS):
        return True
    return bool(cause.signature) and cause.signature != budget.signature and not free
