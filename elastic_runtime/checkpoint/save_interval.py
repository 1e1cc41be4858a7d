"""Reads ``every``: steps, a time, or both; and says when such an interval is over.

Only that: when a failed save is tried again, and how old the last one may be, is in
``save/save_timetable.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING

from elastic_runtime.durations import parse_duration
from elastic_runtime.errors import CheckpointUsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEPS = re.compile(r"(\d+)\s*(?:steps?)?")


@dataclass(frozen=True, slots=True)
class Every:
    """How often to save: whichever comes first; with both fields 0 only when asked to.

    Attributes:
        steps: whenever the number of the step is a multiple of this.
        seconds: whenever this much time has passed since the last save.
    """

    steps: int = 0
    seconds: float = 0.0

    def due_at(self, step: int) -> bool:
        """Whether a save is due at this step; all ranks know it without asking each other."""
        return self.steps > 0 and step % self.steps == 0

    def due_between(self, last: int, step: int) -> bool:
        """Whether anything was due at a step after ``last``, up to ``step``."""
        return self.steps > 0 and step // self.steps > last // self.steps

    def due_after(self, seconds: float) -> bool:
        """A save is due this long after the last one. One rank's clock decides for all."""
        return 0 < self.seconds <= seconds

    def steps_left(self, last: int, step: int) -> float:
        """After how many steps something is due again; 0: it is; inf: never, by steps.

        Args:
            last: when it was done last.
            step: the present one.
        """
        if not self.steps:
            return inf
        return 0 if self.due_between(last, step) else self.steps - step % self.steps

    def seconds_left(self, seconds: float) -> float:
        """After how many seconds something is due again; 0: it is; inf: never, by time.

        Args:
            seconds: since it was done last.
        """
        return max(0.0, self.seconds - seconds) if self.seconds else inf


Interval = int | str | timedelta


def parse_every(value: Interval | Sequence[Interval] | None, name: str = "every") -> Every:
    """Reads ``every`` of ``State.checkpoints``.

    Args:
        value: steps (``10``, ``"10 steps"``), a time (``"30s"``, ``"5m"``, ``"7d"``, ``"500ms"``, a
            ``timedelta``), one of each (``"100 steps, 5m"``, ``(100, "5m")``), or None.
        name: of the argument, for the error.

    Raises:
        CheckpointError: it is none of these, or not above zero.
    """
    if value is None:
        return Every()
    parts: Sequence[Interval] = value.split(",") if isinstance(value, str) else ()
    if not parts:
        parts = value if isinstance(value, tuple | list) else (value,)
    found = [_read(part) for part in parts]
    steps = [one.steps for one in found if one is not None and one.steps > 0]
    seconds = [one.seconds for one in found if one is not None and one.seconds > 0]
    if not found or len(steps) + len(seconds) < len(found) or len(steps) > 1 or len(seconds) > 1:
        raise CheckpointUsageError(
            f"{name}={value!r} is not understood; "
            "give steps (10, '10 steps'), a time ('30s', '5m', '1h') or both ('100 steps, 5m')"
        )
    return Every(sum(steps), sum(seconds))


def _read(value: Interval) -> Every | None:
    if isinstance(value, timedelta):
        return Every(seconds=value.total_seconds())
    if isinstance(value, int) and not isinstance(value, bool):
        return Every(steps=value)
    if not isinstance(value, str):
        return None
    if match := _STEPS.fullmatch(value.strip().lower()):
        return Every(steps=int(match[1]))
    try:
        return Every(seconds=parse_duration(value))
    except ValueError:
        return None
