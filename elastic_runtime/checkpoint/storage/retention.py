"""Which checkpoints are kept: a pure decision.

Three rules, and what any of them keeps stays: the newest few; the first at or after every so many
steps; one for every so much time. A second look at what was left decides the same again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.durations import duration_text
from elastic_runtime.errors import CheckpointUsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep.

    Attributes:
        last: how many of the newest, at least 1; None: all, and the other two mean nothing.
        steps: the first one at or after each multiple of this; 0: none for that reason.
        seconds: one for each such span of time, by the clock of the writer; 0: none for that
            reason.
    """

    last: int | None = None
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What is to become of one checkpoint.

    Attributes:
        which: the checkpoint.
        keep: whether it stays.
        why: for people.
    """

    which: CheckpointId
    keep: bool
    why: str


def parse_retention(keep: int | None, keep_every: int | str | timedelta | None) -> Retention:
    """Reads ``keep`` and ``keep_every`` of ``State.checkpoints``.

    Args:
        keep: how many of the newest to keep, at least 1; None: all.
        keep_every: which others to keep without limit: steps (``1000``, ``"1000 steps"``), a time
            (``"6h"``, a ``timedelta``) or both (``"1000 steps, 6h"``); None: none.

    Raises:
        CheckpointError: one of them is not understood, or would keep nothing.
    """
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool)):
        raise CheckpointUsageError(
            f"keep={keep!r} is a {type(keep).__name__}: give a whole number, or None for all"
        )
    if keep is not None and keep < 1:
        raise CheckpointUsageError(f"keep={keep!r} would keep nothing; give at least 1, or None")
    if keep_every is None:
        return Retention(keep)
    if keep is None:
        raise CheckpointUsageError(
            f"keep_every={keep_every!r} says what to keep beside the newest checkpoints; "
            "say with keep= how many of those (keep=1, for example)"
        )
    parts = keep_every.split(",") if isinstance(keep_every, str) else [keep_every]
    try:
        rules = [parse_every(part) for part in parts]
    except CheckpointUsageError:
        raise _not_understood(keep_every) from None
    steps = [rule.steps for rule in rules if rule.steps]
    seconds = [rule.seconds for rule in rules if rule.seconds]
    if len(steps) > 1 or len(seconds) > 1:
        raise _not_understood(keep_every)
    return Retention(keep, *(steps or [0]), *(seconds or [0.0]))


def _not_understood(keep_every: object) -> CheckpointUsageError:
    return CheckpointUsageError(
        f"keep_every={keep_every!r} is not understood; give steps ('1000 steps'), "
        "a time ('6h') or both ('1000 steps, 6h')"
    )


def apply_retention(rule: Retention, whole: Iterable[Manifest]) -> list[RetentionDecision]:
    """Says which checkpoints stay.

    Args:
        rule: what to keep.
        whole: all checkpoints that could be resumed from; no others count.

    Returns:
        A decision for each, the newest first.
    """
    newest = sorted(whole, key=lambda manifest: manifest.id, reverse=True)
    if rule.last is None:
        return [RetentionDecision(manifest.id, True, "all are kept") for manifest in newest]
    why = {manifest.id: f"among the newest {rule.last}" for manifest in newest[: rule.last]}
    for manifest, reason in (*_by_step(rule, newest), *_by_time(rule, newest)):
        why.setdefault(manifest.id, reason)
    gone = f"not among the newest {rule.last}"
    return [RetentionDecision(m.id, m.id in why, why.get(m.id, gone)) for m in newest]


def _by_step(rule: Retention, newest: list[Manifest]) -> list[tuple[Manifest, str]]:
    """The first at or after each multiple; of two at the same step, that of the newer term."""
    if not rule.steps:
        return []
    chosen: dict[int, Manifest] = {}
    for manifest in sorted(newest, key=lambda m: (m.step, -m.term)):
        if multiple := manifest.step // rule.steps:
            chosen.setdefault(multiple, manifest)
    return [
        (manifest, f"the first from step {multiple * rule.steps} on")
        for multiple, manifest in chosen.items()
    ]


def _by_time(rule: Retention, newest: list[Manifest]) -> list[tuple[Manifest, str]]:
    """The oldest, and each one that is so much later than the last one kept."""
    if not rule.seconds:
        return []
    chosen: list[Manifest] = []
    for manifest in reversed(newest):
        # A clock that was set back by more than that begins a new count.
        if not chosen or abs(manifest.saved_at - chosen[-1].saved_at) >= rule.seconds:
            chosen.append(manifest)
    return [(manifest, f"one for every {duration_text(rule.seconds)}") for manifest in chosen]
