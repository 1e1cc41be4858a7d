"""Whether the job ends after a broken round, or continues, and after which pause: pure.

What a round costs is counted in ``failure_budget`` first; here is what ends a job:

- What the user asked for cannot be done.
- More failures of user code than ``--max-restarts``.
- Too many rounds in a row without progress, whatever broke them: something is wrong that restarts
  do not fix.
- A script that fails on every node in the same way, in one round, before its first step and soon
  after its start. A node that was called back before it could fail proves nothing, so all nodes
  must have failed by themselves. Of the workers of one node only the first to fail is known;
  therefore a job of one node ends at once only for an error that the same code is certain to raise
  again, with one worker at the second failure of the same kind, and with several workers when all
  restarts are used.

Everything else is tried again: at once after the first fault, after growing pauses if there is no
progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.limits import EARLY_FAILURE, MAX_FRUITLESS_ROUNDS, RETRY_PAUSES
from elastic_runtime.protocol.records import PLANNED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.protocol.records import FaultReport
    from elastic_runtime.protocol.round_records import Budget

# How the signature begins of an error that says that what the user asked for cannot be done
# (``errors.UsageError`` in a worker).
USAGE = "usage: "
# How the signature begins of errors that the same code will raise again on every machine.
CERTAIN_TO_REPEAT = (
    "SyntaxError",
    "IndentationError",
    "ModuleNotFoundError",
    "ImportError",
    "NameError",
    "exit code 2",  # a command line that the script's own parser refuses
)


def is_usage_error(report: FaultReport) -> bool:
    """Whether a report says that what the user asked for cannot be done."""
    return report.signature.startswith(USAGE)


def why_no_retry(
    before: Budget,
    after: Budget,
    reports: Sequence[FaultReport],
    cause: FaultReport,
    *,
    members: int,
    workers: int,
    max_restarts: int,
) -> str:
    """Why a broken round is not tried again.

    Args:
        before: the budget when the round was sealed.
        after: the budget that this round has been counted in.
        reports: what its members have said.
        cause: the one of them that tells most.
        members: how many nodes the round had.
        workers: how many workers all its nodes had together.
        max_restarts: failures of user code that the job may have.

    Returns:
        One line for people; "" if the job continues.
    """
    if is_usage_error(cause):
        return cause.reason
    if after.failures > before.failures:
        if hopeless := _why_hopeless(before, reports, cause, members, workers):
            return hopeless
    return _what_is_used_up(after, cause, max_restarts)


def pause_before_retry(after: Budget, free: bool) -> float:
    """Seconds from the break of a round to the next round.

    Args:
        after: the budget that this round has been counted in.
        free: the round cost no restart; then the first one without progress needs no pause either.
    """
    unlucky = after.fruitless - (1 if free else 0)
    if unlucky <= 0:
        return 0.0
    return RETRY_PAUSES.pause(unlucky)


def _what_is_used_up(after: Budget, cause: FaultReport, max_restarts: int) -> str:
    if after.failures > max_restarts:
        used = (
            "no restart is allowed"
            if max_restarts == 0
            else f"all {max_restarts} restarts are used"
        )
        return f"{cause.reason}; {used} (--max-restarts)"
    if after.fruitless >= MAX_FRUITLESS_ROUNDS:
        rounds = f"{MAX_FRUITLESS_ROUNDS} rounds in a row"
        return f"{rounds} made no progress; the last one: {cause.reason}"
    return ""


def _why_hopeless(
    before: Budget, reports: Sequence[FaultReport], cause: FaultReport, members: int, workers: int
) -> str:
    """Why no restart can fix this failure of user code; "" if one may."""
    own = [report for report in reports if not (report.consequence or report.kind == PLANNED)]
    early = all(report.step < 0 and report.lifetime < EARLY_FAILURE for report in own)
    same = {report.signature for report in own} == {cause.signature} and bool(cause.signature)
    if not (early and same and before.best_step < 0 and len(own) == members):
        return ""
    if members > 1:
        return f"all {members} nodes fail in the same way soon after their start: {cause.reason}"
    if cause.signature.startswith(CERTAIN_TO_REPEAT):
        return f"{cause.reason}; restarting will not fix this"
    if workers == 1 and before.signature == cause.signature:
        return f"it fails in the same way again soon after its start: {cause.reason}"
    return ""
