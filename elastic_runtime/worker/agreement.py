"""How all ranks agree to do something (save, leave, stop) at the same step.

Each rank says what it wishes; the wishes are combined by a small asynchronous max-reduce that is
started at the end of a step and read at the end of the next one. All ranks start and read at the
same steps, so all of them read the same answer at the same step, however far apart they run. Where
commits are rare the next one is too late for an answer: there all ask and wait at each.

It takes some time from the two steps that it touches, so it is not started at every one. With its
wishes each rank says after how many steps it wants the next one: soon while the round is new, as
replacements and new nodes come then, and less and less often after that; but in time for what it
knows that it will wish. The smallest number counts, and is the same on all ranks.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from enum import IntFlag
from math import inf
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from elastic_runtime.limits import (
    AGREEMENT_LONGEST_PERIOD_US,
    AGREEMENT_LOOK_PAUSE,
    AGREEMENT_MAX_STEPS,
    AGREEMENT_MAX_STEPS_LATER,
    AGREEMENT_PERIOD_US,
    AGREEMENT_SHARE_OF_AGE,
    AGREEMENT_STEP_OUTLIER,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Wish(IntFlag):
    """What a rank can ask all ranks to do; three of them are what it says of itself."""

    NOTHING = 0
    SAVE = 1
    LEAVE = 2  # the job, with the state saved
    CHANGE = 4  # leave the round, and keep the process
    STAYS = 8  # this rank's node does not leave the job
    TRAINS = 16  # this rank's ``train`` has not returned
    FAILED = 32  # learn of a save in the background that was not finished
    SNAPSHOT = 64  # take a snapshot in memory
    BUSY = 128  # something is under way in this rank's background
    STOP = 256  # end training, for good
    DUTY = 512  # something is owed because of the time


@dataclass(frozen=True, slots=True)
class Foreseen:
    """When a rank will wish something, as far as it knows that; counted from now.

    Attributes:
        seconds: whichever of the two comes first.
        steps: the same.
    """

    seconds: float = inf
    steps: float = inf

    def or_before(self, other: Foreseen) -> Foreseen:
        """The earlier of both."""
        return Foreseen(min(self.seconds, other.seconds), min(self.steps, other.steps))


NOTHING_FORESEEN = Foreseen()

_WISHES = len(Wish)


def usual_step_us(spent_us: int, steps: int, longest_us: int) -> int:
    """How long the next steps will take, going by those since the last agreement.

    It is the mean: one step that was held up must not bring the agreement back at once. But if one
    took many times as long as the others, those that follow may as well.

    Args:
        spent_us: all of them together, in microseconds.
        steps: how many they were.
        longest_us: the longest of them.
    """
    return max(1, spent_us // max(1, steps), longest_us // AGREEMENT_STEP_OUTLIER)


def pause_after(step_us: int, age_us: int, foreseen: Foreseen = NOTHING_FORESEEN) -> int:
    """From one start of the agreement to the next, in steps, if it were for one rank.

    Args:
        step_us: how long a step takes, in microseconds.
        age_us: of the round: since when the ranks agree.
        foreseen: what this rank will wish.
    """
    step_us = max(1, step_us)
    at_first = min(AGREEMENT_MAX_STEPS, round(AGREEMENT_PERIOD_US / step_us))
    longest_us = min(age_us // AGREEMENT_SHARE_OF_AGE, AGREEMENT_LONGEST_PERIOD_US)
    period_us = min(longest_us, 1e6 * foreseen.seconds)
    later = min(AGREEMENT_MAX_STEPS_LATER, round(period_us / step_us))
    return max(1, int(min(foreseen.steps, max(at_first, later))))


def _is_last(agreed: Wish) -> bool:
    """Whether no step follows that could read one more answer.

    An agreement that is never read would still run while its group ends. Then gloo sometimes waits
    for ever: it loses an error that a send meets at once.
    """
    return bool(agreed & (Wish.LEAVE | Wish.CHANGE) or (agreed and Wish.TRAINS not in agreed))


class Agreement:
    """Combines the wishes of all ranks. ``step`` must be called equally often by all of them."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        foresee: Callable[[], Foreseen] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Starts with nothing wished.

        Args:
            group: all ranks, over gloo; the reductions run on it. None: there is only this rank.
            foresee: says when this rank will wish something; asked after its wishes. None: that
                is never known.
            waits: each step asks and waits for the answer; nothing is read a step later.
        """
        self._group = group
        self._foresee = foresee or Foreseen
        self._waits = waits
        self._work: dist.Work | None = None
        # One slot per wish, since a maximum of combined flags would lose some; then the pause, as a
        # negative number, for its minimum. The tensor is a view of the array: reading and writing
        # that is far cheaper. On the CPU, as all that is ours.
        self._slots = array("q", [0] * (_WISHES + 1))
        self._ballot = torch.frombuffer(self._slots, dtype=torch.int64)
        self._wait = 1
        self._began = self._last = time.monotonic_ns()
        # Since the last start: in nanoseconds.
        self._steps = self._spent = self._longest = 0

    def step(self, wishes: Callable[[], Wish]) -> Wish:
        """Ends a step.

        Args:
            wishes: says what this rank wishes; asked when all ranks are about to be. When no rank
                trains any more, there is no further step.

        Returns:
            What all ranks are to do now, the same on every one.
        """
        if self._group is None:
            return wishes()
        if self._waits:
            return self.at_once(wishes())
        now = time.monotonic_ns()
        took = now - self._last
        self._last = now
        self._steps += 1
        self._spent += took
        if took > self._longest:
            self._longest = took
        agreed = Wish.NOTHING if self._work is None else self._read()
        self._wait -= 1
        if self._wait <= 0 and not _is_last(agreed):
            self._start(wishes())
        return agreed

    def at_once(self, wishes: Wish) -> Wish:
        """Asks all ranks and waits for the answer, after an agreement that ends the steps.

        Args:
            wishes: of this rank, as they are by now.

        Returns:
            What any rank wishes by now, the same on every one.
        """
        if self._group is None:
            return wishes
        self._start(wishes)
        return self._read()

    @property
    def alone(self) -> bool:
        """Whether there is only this rank."""
        return self._group is None

    def restart_clock(self) -> None:
        """Leaves the time since the last step out of account: it was no training."""
        self._last = time.monotonic_ns()

    def wait_visibly(self, patience: float, late: Callable[[], None]) -> None:
        """Waits for the agreement that is under way, if one is, and says so if that takes long.

        Args:
            patience: in seconds.
            late: called once after that.
        """
        if self._work is None:
            return
        until = time.monotonic() + patience
        while not self._work.is_completed():
            if time.monotonic() > until:
                late()
                return
            time.sleep(AGREEMENT_LOOK_PAUSE)  # a wait of gloo's that times out ends the group

    def close(self) -> None:
        """Waits for the agreement that is under way, so that no peer is left without an answer."""
        self._read()

    def _start(self, wishes: Wish) -> None:
        step_us = usual_step_us(self._spent // 1000, self._steps, self._longest // 1000)
        self._steps = self._spent = self._longest = 0
        age_us = (self._last - self._began) // 1000
        flags, slots = int(wishes), self._slots
        for slot in range(_WISHES):
            slots[slot] = flags >> slot & 1
        slots[_WISHES] = -pause_after(step_us, age_us, self._foresee())
        self._work = dist.all_reduce(
            self._ballot, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _read(self) -> Wish:
        if self._work is None:
            return Wish.NOTHING
        self._work.wait()
        self._work = None
        *votes, pause = self._slots
        self._wait = -pause
        return Wish(sum(1 << slot for slot, vote in enumerate(votes) if vote))
