"""What a broken round costs the job, when to try again, and when to stop: pure.

One budget serves the whole job and travels in the round's record, so that a round's end is
counted exactly once, in the same transaction that seals the next round.

The rules:

- One round that broke is at most one failure, however many workers it took with it.
- A killed worker, a lost node or a planned change costs nothing. When one is among the reports,
  errors of other workers are its echo.
- *Progress* is a higher step than ever before; for scripts that report no steps it is a long
  enough life, or an error that has changed. Rounds in a row without progress are counted
  whatever ended them, and too many end the job: something is wrong that restarts do not mend.
- A worker that its machine has no room for costs nothing, but how long the others have waited for
  it is no progress.
- A round whose members no longer reach each other costs nothing and is no round without progress.
- The first try after a fault is immediate; without progress the pauses grow.
- A script that fails on every node in the same way, in one round and soon after its start, will not
  do better next time; the job ends with that error. A node that was called back before it could
  fail says nothing of that, and of the workers of one node only the first to fail is known: a node
  that is alone gets a second try, and with several workers all its restarts, unless the same code
  is certain to raise that error again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.backoff import Backoff
from elastic_runtime.protocol.records import (
    ASKED,
    CUT_OFF,
    FAILED,
    HANGS,
    KILLED,
    LOST,
    NO_ROOM,
    PLANNED,
    START,
    FaultReport,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.protocol.round_records import Budget

MAX_FRUITLESS = 5
PAUSES = Backoff(first=0.5, longest=30.0)
# A script without step reports has made progress if it lived this long (seconds). A fault from
# outside says little about the script, so there a short life is enough.
LIFE_THAT_COUNTS = 30.0
LIFE_THAT_COUNTS_IF_KILLED = 5.0
# Failing within this time (seconds), without a step reported, is failing soon after the start.
EARLY = 10.0
# Errors that the same code will raise again; others get a second try where only one node can tell.
# What the user asked for cannot be done (``errors.UsageError`` in a worker); no try will do better.
USAGE = "usage: "
CERTAIN = (
    "SyntaxError",
    "IndentationError",
    "ModuleNotFoundError",
    "ImportError",
    "NameError",
    "exit code 2",
)

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

    Errors that only echo the end of a peer come after all causes, and nodes that left because
    they were told to come last.
    """
    return min(
        reports,
        key=lambda report: (
            report.kind == PLANNED,
            not report.signature.startswith(USAGE),  # nothing else can have led to it
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
        planned: everybody was told to leave for a change of the membership, so that errors which
            only echo the end of a peer are part of it.
        cut: which members did not reach each other, for people; "": all did, as far as is known.

    Returns:
        The new budget, and whether, why and when to go on.
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
    impossible = cause.reason if cause.signature.startswith(USAGE) else ""
    hopeless = "" if free else _hopeless(budget, reports, cause, members, workers or members)
    end = impossible or hopeless or _end(after, cause, max_restarts)
    return RoundCost(after, bool(end), end or cause.reason, _pause(after, free), cause, free)


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
    step = max((report.step for report in reports), default=-1)
    life = max((report.lifetime for report in reports), default=0.0)
    return replace(budget, best_step=max(budget.best_step, step), longest=max(budget.longest, life))


def _made_progress(
    budget: Budget, reports: Sequence[FaultReport], cause: FaultReport, free: bool
) -> bool:
    step = max(report.step for report in reports)
    if step >= 0 or budget.best_step >= 0:
        return step > budget.best_step
    if cause.signature == NO_ROOM:
        return False  # however long the others have waited for the worker that never came
    life = max(report.lifetime for report in reports)
    if life >= (LIFE_THAT_COUNTS_IF_KILLED if free else LIFE_THAT_COUNTS):
        return True
    return bool(cause.signature) and cause.signature != budget.signature and not free


def _pause(after: Budget, free: bool) -> float:
    unlucky = after.fruitless - (1 if free else 0)
    if unlucky <= 0:
        return 0.0
    return PAUSES.pause(unlucky)


def _end(after: Budget, cause: FaultReport, max_restarts: int) -> str:
    if after.failures > max_restarts:
        used = (
            "no restart is allowed"
            if max_restarts == 0
            else f"all {max_restarts} restarts are used"
        )
        return f"{cause.reason}; {used} (--max-restarts)"
    if after.fruitless >= MAX_FRUITLESS:
        return f"{MAX_FRUITLESS} rounds in a row made no progress; the last one: {cause.reason}"
    return ""


def _hopeless(
    before: Budget, reports: Sequence[FaultReport], cause: FaultReport, members: int, workers: int
) -> str:
    """Why no restart will mend this; "" if one may."""
    own = [report for report in reports if not (report.consequence or report.kind == PLANNED)]
    early = all(report.step < 0 and report.lifetime < EARLY for report in own)
    same = {report.signature for report in own} == {cause.signature} and bool(cause.signature)
    if not (early and same and before.best_step < 0 and len(own) == members):
        return ""
    if members > 1:
        return f"all {members} nodes fail in the same way soon after their start: {cause.reason}"
    if cause.signature.startswith(CERTAIN):
        return f"{cause.reason}; no restart would mend that"
    if workers == 1 and before.signature == cause.signature:
        return f"it fails in the same way again soon after its start: {cause.reason}"
    return ""
