"""What is owed after certain steps: an evaluation, a log line, a copy of the best model (pure).

A duty is owed from the commit of a step on, whether or not the rank that would have done it lives;
it is paid when all ranks have called it. What is owed is part of the committed state, so it is
neither forgotten after a fault nor done for a step that never counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.save_interval import Every, parse_every
from elastic_runtime.errors import CheckpointUsageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_EPOCH, _END = "epoch", "end"


@dataclass(frozen=True, slots=True)
class When:
    """When something is owed.

    Attributes:
        every: after so many steps, or so much time.
        epoch: after the last step of each epoch.
        end: when training is over.
    """

    every: Every = Every()  # noqa: RUF009  # it is frozen
    epoch: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class Duty:
    """Something that all ranks do together after certain steps."""

    name: str
    when: When
    do: Callable[[], object]


def parse_when(when: object) -> When:
    """Reads the first argument of ``State.at``.

    Args:
        when: ``"50 steps"``, ``"10m"``, ``"epoch"``, ``"end"``, or several: ``"50 steps, end"``.

    Raises:
        UsageError: it is none of these.
    """
    words = [word.strip() for word in when.split(",")] if isinstance(when, str) else []
    rest = [word for word in words if word not in (_EPOCH, _END)]
    try:
        if not words:
            raise ValueError
        every = parse_every(", ".join(rest)) if rest else Every()
    except (CheckpointUsageError, ValueError):
        raise UsageError(
            f"state.at({when!r}, ...) is not understood; give steps ('50 steps'), a time ('10m'), "
            "'epoch', 'end', or several of them ('50 steps, end')"
        ) from None
    return When(every, _EPOCH in words, _END in words)


class Duties:
    """All duties of one State, in the order in which they were given."""

    def __init__(self) -> None:
        """There are none."""
        self._all: dict[str, Duty] = {}
        self._timed: dict[str, float] = {}  # when each was done last, by this rank's clock

    def add(self, when: object, do: Callable[[], object], name: str | None, now: float) -> None:
        """Adds one.

        Args:
            when: see ``parse_when``.
            do: called without arguments.
            name: under which it is owed; None: that of the function.
            now: by the monotonic clock.

        Raises:
            UsageError: it cannot be called, or the name is taken.
        """
        if not callable(do):
            raise UsageError(
                f"state.at(when, do) needs a function, and this is a {type(do).__qualname__}"
            )
        called = name or str(getattr(do, "__name__", type(do).__name__))
        if called in self._all:
            raise UsageError(
                f"two duties of this State are called {called!r}, and each is owed by its name; "
                "give one of them another: state.at(when, do, name=...)"
            )
        duty = Duty(called, parse_when(when), do)
        self._all[called] = duty
        if duty.when.every.seconds:
            self._timed[called] = now

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._all)

    def get(self, name: str) -> Duty | None:
        """The duty of this name, if the program has it."""
        return self._all.get(name)

    def owed_after(self, step: int, *, epoch_over: bool) -> list[str]:
        """What is owed because this step is committed.

        Args:
            step: its number.
            epoch_over: it was the last one of an epoch.
        """
        return [
            duty.name
            for duty in self._all.values()
            if duty.when.every.due_at(step) or (epoch_over and duty.when.epoch)
        ]

    def of_epochs(self) -> str | None:
        """One that is owed after each epoch, if there is any."""
        return next((duty.name for duty in self._all.values() if duty.when.epoch), None)

    def owed_at_end(self) -> list[str]:
        """What is owed because training is over."""
        return [duty.name for duty in self._all.values() if duty.when.end]

    def overdue(self, now: float) -> list[str]:
        """What is owed because of the time, by the clock of this rank."""
        return [
            name
            for name, last in self._timed.items()
            if self._all[name].when.every.due_after(now - last)
        ]

    def due_in(self, now: float) -> float:
        """In how many seconds something is owed because of the time; inf: never."""
        left = (
            self._all[name].when.every.seconds_left(now - last)
            for name, last in self._timed.items()
        )
        return min(left, default=inf)

    def done(self, name: str, now: float) -> None:
        """It was done; its time begins anew."""
        if name in self._timed:
            self._timed[name] = now
