"""When a round in place counts as hanging: pure.

Time counts from the moment at which ``train`` was entered in the present round, from the last step
of it, or from the end of a ``busy()`` of the script, whichever is latest. Outside of that nothing
is expected and nothing counts: ranks that wait for a node, connect, or load do not hang. They may
take as long as it takes; the time is known, so that somebody can look whether they are alive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low

# Of so many steps the usual one is taken. A stall that has healed is one among them: were it the
# longest step that counted, the next stall would be noticed three times as late.
_REMEMBERED = 15
_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the workers of a node show of their progress.

    Attributes:
        count: which step of the round that was that one of them has reported last.
        moment: when, in seconds on the monotonic clock.
        expected: since when the next step is expected, on that clock; None: none is, as the ranks
            are in no round, are on their way into ``train``, or are busy with something else.
        in_train: one of them has come to ``train``.
        busy: one of them is there, and busy with something else.
    """

    count: int = 0
    moment: float = 0.0
    expected: float | None = None
    in_train: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class HangClock:
    """How long the present step takes, and how long it may.

    Attributes:
        hang_timeout: a step may always take so long, in seconds; 0: for ever.
        round: the round that runs.
        began: when the present step began; None: none is expected.
        entered: since when the workers are on their way into ``train``; None: they were there.
        count: the steps of this round so far.
        first: how long the first step took that was ever seen here, from the entry into ``train``.
            What a new process has to do once, such as compiling, is in it; 0.0: none was seen, and
            until then the first one may take for ever.
        steps: how long the last steps took, without the first ones of rounds.
        busy: since when a worker has been busy with something else; None: none is.
        odd: how long the present step takes is no measure for others: the workers were asked where
            they are, or somebody was busy in the middle of it.
    """

    hang_timeout: float
    round: int = 0
    began: float | None = None
    entered: float | None = None
    count: int = 0
    first: float = 0.0
    steps: tuple[float, ...] = ()
    busy: float | None = None
    odd: bool = False

    @property
    def limit(self) -> float:
        """How long the present step may take, in seconds: ``hang_timeout``, or three times as long
        as it usually does, if that is more. The first one of a round may take three times as long
        as the first of all did."""
        usual = median_low(self.steps) if self.steps else 0.0
        return max(self.hang_timeout, _PATIENCE * max(usual, 0.0 if self.count else self.first))

    def idle(self, now: float) -> float:
        """For how many seconds a step has been expected; 0.0 if none is."""
        if self.began is None or not self.first or not self.hang_timeout:
            return 0.0
        return now - self.began

    def on_the_way(self, now: float) -> float:
        """For how many seconds the workers have been on their way into ``train``."""
        return 0.0 if self.entered is None else now - self.entered

    def busy_for(self, now: float) -> float:
        """For how many seconds a worker has said that it is busy with something else."""
        return 0.0 if self.busy is None else now - self.busy

    def fruitless(self, now: float) -> float:
        """For how many seconds workers have been in ``train`` here and no step was ever seen."""
        return 0.0 if self.began is None or self.first else now - self.began

    def overdue(self, now: float) -> bool:
        """Whether it is time to ask the workers where they are."""
        return self.idle(now) > self.limit

    def seen(self, pulse: Pulse, number: int, now: float) -> HangClock:
        """The clock after a look at the workers.

        Args:
            pulse: what they show.
            number: the round that they are in.
            now: seconds on the monotonic clock.
        """
        since = now if self.busy is None else self.busy
        clock = replace(self, busy=since if pulse.busy else None)
        if number != self.round:
            clock = replace(clock, round=number, began=None, entered=now, count=0, odd=False)
        if pulse.in_train:
            clock = replace(clock, entered=None)
        if pulse.expected is None:
            return replace(clock, began=None, odd=clock.odd or clock.began is not None)
        began = pulse.expected if clock.began is None else clock.began
        if pulse.moment > began:
            clock = clock._measured(pulse, began)
        clock = replace(clock, began=max(pulse.expected, pulse.moment))
        return replace(clock, odd=clock.odd or clock.overdue(now))

    def _measured(self, pulse: Pulse, began: float) -> HangClock:
        """With the time of the steps that were made since ``began``."""
        took = (pulse.moment - began) / max(1, pulse.count - self.count)
        clock = replace(self, count=pulse.count, odd=False)
        if not self.first:
            return replace(clock, first=took)
        if self.odd or not self.count:
            return clock
        return replace(clock, steps=(*self.steps, took)[-_REMEMBERED:])
