"""How all ranks agree to do something (save, leave, stop) at the same step.

Each rank says what it wishes; the wishes are combined by a small asynchronous max-reduce that is
started at the end of a step and read at the end of the next one. All ranks start and read at the
same steps, so all of them read the same answer at the same step, however far apart they run.

On short steps it is not started at every one: the longest time that a step took on any rank is
part of the reduction, and from it every rank computes the same pause.
"""

from __future__ import annotations

import time
from enum import IntFlag

import torch
import torch.distributed as dist

from elastic_runtime.limits import AGREEMENT_MAX_STEPS, AGREEMENT_PERIOD_US


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


_ALL = tuple(wish for wish in Wish if wish)
_FACTS = Wish.STAYS | Wish.TRAINS | Wish.BUSY


def pause_after(longest_step_us: int) -> int:
    """From one start of the agreement to the next, in steps.

    Args:
        longest_step_us: the longest step on any rank since the last start, in microseconds.
    """
    return max(1, min(AGREEMENT_MAX_STEPS, round(AGREEMENT_PERIOD_US / max(1, longest_step_us))))


def _is_last(agreed: Wish) -> bool:
    """Whether no step follows that could read one more answer.

    An agreement that is never read would still run while its group ends. Then gloo sometimes waits
    for ever: it loses an error that a send meets at once.
    """
    return bool(agreed & (Wish.LEAVE | Wish.CHANGE) or (agreed and Wish.TRAINS not in agreed))


class Agreement:
    """Combines the wishes of all ranks. ``step`` must be called equally often by all of them."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """Starts with nothing wished.

        Args:
            group: all ranks, over gloo; the reductions run on it. None: there is only this rank.
        """
        self._group = group
        self._wishes = Wish.NOTHING
        self._work: dist.Work | None = None
        # One slot per wish, since a maximum of combined flags would lose some; then the time.
        # On the CPU, as all that is ours: the script may have made another device the default.
        self._ballot = torch.zeros(len(_ALL) + 1, dtype=torch.int64, device="cpu")
        self._wait = 1
        self._longest_us = 0
        self._last = time.monotonic_ns()

    def step(self, wishes: Wish) -> Wish:
        """Ends a step.

        Args:
            wishes: of this rank; they are kept until all ranks know them. The facts among them
                (STAYS, TRAINS, BUSY) are those of the last call. When no rank trains any more,
                there is no further step.

        Returns:
            What all ranks are to do now, the same on every one.
        """
        self._wishes = self._wishes & ~_FACTS | wishes
        if self._group is None:
            agreed, self._wishes = self._wishes, Wish.NOTHING
            return agreed
        now = time.monotonic_ns()
        self._longest_us = max(self._longest_us, (now - self._last) // 1000)
        self._last = now
        agreed = self._read()
        self._wait -= 1
        if self._wait <= 0 and not _is_last(agreed):
            self._start()
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
        self._wishes = wishes
        self._start()
        return self._read()

    @property
    def alone(self) -> bool:
        """Whether there is only this rank."""
        return self._group is None

    def restart_clock(self) -> None:
        """Leaves the time since the last step out of account: it was no training."""
        self._last = time.monotonic_ns()

    def close(self) -> None:
        """Waits for the agreement that is under way, so that no peer is left without an answer."""
        self._read()

    def _start(self) -> None:
        for slot, wish in enumerate(_ALL):
            self._ballot[slot] = int(wish in self._wishes)
        self._ballot[-1] = self._longest_us
        self._wishes = Wish.NOTHING
        self._longest_us = 0
        self._work = dist.all_reduce(
            self._ballot, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _read(self) -> Wish:
        if self._work is None:
            return Wish.NOTHING
        self._work.wait()
        self._work = None
        *votes, longest_us = self._ballot.tolist()
        self._wait = pause_after(longest_us)
        agreed = Wish.NOTHING
        for wish, vote in zip(_ALL, votes, strict=True):
            agreed |= wish if vote else Wish.NOTHING
        return agreed
