"""Where each rank stands after a fault, and whose memory all of them go on from.

A pure decision: every rank makes it for itself from the same all-gathered standings, so all of
them come to the same answer without a leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


class Condition(IntEnum):
    """What a rank's memory is worth."""

    NEW = 0  # has no state yet
    CLEAN = 1  # is, or can be rolled back to, exactly the state of its committed step
    FINISHED = 2  # all optimizers of the next step have finished, but it is not committed
    DIRTY = 3  # a step is half done, and nobody can undo it


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rank has come.

    Attributes:
        step: how many steps it has committed; means nothing if it is NEW.
        condition: what its memory is worth.
        round: the last round in which it was alike with all others. A step that only silent ranks
            had committed is done again in a later round, and with other bits; if they come back,
            the later round counts.
    """

    step: int
    condition: Condition
    round: int = 0

    @property
    def reach(self) -> int:
        """The step whose state it can give to others, -1 for none."""
        match self.condition:
            case Condition.CLEAN:
                return self.step
            case Condition.FINISHED:
                return self.step + 1
            case _:
                return -1


@dataclass(frozen=True, slots=True)
class Choice:
    """Where all ranks go on, and who gives what to whom.

    Attributes:
        step: the committed step that all ranks go on from.
        sources: ranks that have its state in memory; empty unless ``kind`` is memory or fresh.
        receivers: all other ranks.
        adopt: the sources have finished this step and must take it as committed first.
        kind: ``memory``; ``fresh``: nobody has a state, rank 0 gives its initial one;
            ``saved``: the checkpoint has to be loaded; ``lost``: there is none either.
        reason: why, for people.
    """

    step: int
    sources: tuple[int, ...]
    receivers: tuple[int, ...]
    adopt: bool
    kind: Literal["memory", "fresh", "saved", "lost"]
    reason: str


def choose(standings: Sequence[Standing], saved: int) -> Choice:
    """Decides whose memory all ranks go on from.

    The furthest committed step wins. A finished step that nobody has committed counts only if
    nobody is clean at the one before it.

    Args:
        standings: of all ranks, in rank order; at least one.
        saved: the step of the newest checkpoint, -1 if there is none.

    Returns:
        The same answer on every rank that asks with the same arguments.
    """
    committed = [s.step for s in standings if s.condition is not Condition.NEW]
    if not committed:
        if saved >= 0:
            return _from_checkpoint(standings, saved, "no rank has a state in memory")
        return _from_memory(standings, 0, (0,), "fresh", "nobody has a state: rank 0 gives its own")
    newest = max(committed)
    if any(s.step == newest and s.condition is Condition.CLEAN for s in standings):
        step, why = newest, f"step {newest} is clean in memory"
    else:
        step = max(s.reach for s in standings)
        why = (
            f"step {newest} is held by no clean rank; step {step} is the furthest in memory"
            if step <= newest
            else f"no rank is clean at step {newest}, but step {step} is finished"
        )
    if step < 0 or saved > step:
        where = f"no rank is clean at step {newest}" if step < 0 else why
        return _from_checkpoint(standings, saved, where)
    able = [r for r, s in enumerate(standings) if s.reach == step]
    clean = [r for r in able if standings[r].condition is Condition.CLEAN]
    last = max(standings[r].round for r in clean or able)
    sources = tuple(r for r in clean or able if standings[r].round == last)
    return _from_memory(standings, step, sources, "memory", why, adopt=not clean)


def _from_memory(
    standings: Sequence[Standing],
    step: int,
    sources: tuple[int, ...],
    kind: Literal["memory", "fresh"],
    reason: str,
    *,
    adopt: bool = False,
) -> Choice:
    receivers = tuple(rank for rank in range(len(standings)) if rank not in sources)
    return Choice(step, sources, receivers, adopt, kind, reason)


def _from_checkpoint(standings: Sequence[Standing], saved: int, reason: str) -> Choice:
    everybody = tuple(range(len(standings)))
    if saved >= 0:
        reason = f"{reason}; the newest checkpoint serves"
        return Choice(saved, (), everybody, False, "saved", reason)
    return Choice(0, (), everybody, False, "lost", f"{reason}, and there is no checkpoint")
