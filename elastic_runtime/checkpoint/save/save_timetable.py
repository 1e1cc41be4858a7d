"""When to save, when to try again after a failure, and when failures are too many: pure.

Storage fails for a while now and then, and training continues meanwhile. After a failure the next
save comes sooner than planned, after a pause that grows; no other one is tried before. One that
does not come to its end puts off the next. Only if saves fail for too long, something must be done
about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.save_interval import Every, parse_every
from elastic_runtime.limits import (
    SAVE_AGE_INTERVALS,
    SAVE_AGE_WITHOUT_INTERVAL,
    SAVE_RETRY_PAUSES,
    SHORTEST_SAVE_AGE,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.checkpoint.save_interval import Interval


@dataclass(frozen=True, slots=True)
class Limit:
    """How long no save may succeed.

    Attributes:
        age: whichever of the two comes first.
        least: never before so many seconds.
    """

    age: Every
    least: float = 0.0

    def exceeded(self, steps: int, seconds: float) -> bool:
        """Whether it is too long by now.

        Args:
            steps: since the last state that is whole in storage.
            seconds: the same.
        """
        long = 0 < self.age.steps <= steps or 0 < self.age.seconds <= seconds
        return long and seconds >= self.least


def parse_limit(
    value: Interval | Sequence[Interval] | None, every: Every, name: str = "max_age"
) -> Limit:
    """Reads ``max_age`` of ``State.checkpoints``.

    Args:
        value: as ``every``; None: ten of its intervals, but at least a minute; an hour if there
            is no interval.
        every: how often to save.
        name: of the argument, for the error.

    Raises:
        CheckpointUsageError: it is not understood.
    """
    if value is not None:
        return Limit(parse_every(value, name))
    if every == Every():
        return Limit(Every(seconds=SAVE_AGE_WITHOUT_INTERVAL))
    return Limit(
        Every(every.steps * SAVE_AGE_INTERVALS, every.seconds * SAVE_AGE_INTERVALS),
        SHORTEST_SAVE_AGE,
    )


@dataclass(frozen=True, slots=True)
class SaveTimetable:
    """When saves are due. Moments are seconds on the monotonic clock.

    What depends on the step number is the same on all ranks; else the clock of rank 0 counts.

    Attributes:
        every: the regular interval.
        limit: how long no save may succeed.
        began: when the last save began; at first, when the job did.
        soon: from when on a save is due beside the regular ones. The first one of a job is due at
            once: until then nothing of it would be left.
        wished: it has been asked for.
        pausing: a save has failed or was put off, and is not to be tried before ``soon``.
        failures: in a row.
        whole_at, whole_step: of the last state that is whole in storage, or that the job began
            with.
    """

    every: Every
    limit: Limit
    began: float
    soon: float = inf
    wished: bool = False
    pausing: bool = False
    failures: int = 0
    whole_at: float = 0.0
    whole_step: int = 0

    @classmethod
    def at_start(cls, every: Every, limit: Limit, now: float) -> SaveTimetable:
        """That of a job which has neither saved nor loaded anything."""
        soon = inf if every == Every() else now
        return cls(every, limit, now, soon, whole_at=now)

    def due_at(self, step: int) -> bool:
        """Whether all ranks save at this step, which they need not agree on."""
        return not self.pausing and self.every.due_at(step)

    def wish(self, now: float, *, ready: bool) -> bool:
        """Whether rank 0 is to ask all ranks for a save.

        Args:
            now: the moment.
            ready: whether there is memory for one that is done in the background.
        """
        if self.wished:
            return False
        if now >= self.soon and ready:
            return True
        return not self.pausing and self.every.due_after(now - self.began)

    def due_in(self, now: float) -> float:
        """After how many seconds rank 0 will ask for a save; inf: nothing is known of one.

        Args:
            now: the moment.
        """
        if self.wished:  # it begins about now
            return self.every.seconds_left(0.0)
        regular = inf if self.pausing else self.every.seconds_left(now - self.began)
        return max(0.0, min(self.soon - now, regular))

    def asked(self) -> SaveTimetable:
        """A save has been asked for."""
        return replace(self, wished=True)

    def begin(self, now: float) -> SaveTimetable:
        """A save begins."""
        return replace(self, began=now, soon=inf, wished=False, pausing=False)

    def resumed(self, now: float, step: int) -> SaveTimetable:
        """The job continues from a state that is saved."""
        return replace(self.begin(now), failures=0, whole_at=now, whole_step=step)

    def enter(self, now: float, *, lost: bool) -> SaveTimetable:
        """The ranks are others from now on.

        Args:
            now: the moment.
            lost: a save was under way, and is not finished now.
        """
        again = lost or self.pausing
        return replace(self, wished=False, pausing=False, soon=now if again else self.soon)

    def fail(self, now: float, step: int, whole: tuple[float, int] | None) -> SaveTimetable:
        """A save has failed.

        Args:
            now: the moment.
            step: the present one.
            whole: when the last save succeeded and of which step, if any has.
        """
        failures, whole_at, whole_step = self.failures + 1, self.whole_at, self.whole_step
        if whole is not None and whole[0] > whole_at:
            failures, whole_at, whole_step = 1, *whole
        if self.every == Every() and failures == 1:
            whole_at, whole_step = now, step  # nothing was due before
        pause = min(
            SAVE_RETRY_PAUSES.pause(failures), self.every.seconds or SAVE_RETRY_PAUSES.longest
        )
        return replace(
            self,
            soon=now + pause,
            wished=False,
            pausing=True,
            failures=failures,
            whole_at=whole_at,
            whole_step=whole_step,
        )

    def failed_last(self, whole: tuple[float, int] | None) -> bool:
        """Whether no save has succeeded since the last failure.

        Args:
            whole: see ``fail``.
        """
        return self.failures > 0 and (whole is None or whole[0] <= self.whole_at)

    def put_off(self, now: float) -> SaveTimetable:
        """A save is due while the one before is under way: it follows that one."""
        return replace(self, soon=now + SAVE_RETRY_PAUSES.first, wished=False, pausing=True)

    def overdue(self, now: float, step: int) -> str:
        """Says, after a failure, that no save has succeeded for too long; "" otherwise."""
        steps, seconds = step - self.whole_step, now - self.whole_at
        if not self.limit.exceeded(steps, seconds):
            return ""
        many = "a save has" if self.failures == 1 else f"{self.failures} saves in a row have"
        return (
            f"nothing was saved for {seconds:.0f} s and {steps} steps, since step "
            f"{self.whole_step}, which is longer than max_age; {many} failed"
        )
