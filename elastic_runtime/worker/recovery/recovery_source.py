"""Whose memory all ranks continue from after a fault: a pure decision, from the status of each.

Every rank decides for itself from the same all-gathered statuses, so all of them come to the same
answer without a leader.

Memory and checkpoints have one order, that of (term, step). A term is that of the checkpoints
(``format.manifest`` there): a process that saves takes the next one first, and all ranks know it
before anything is written under it. So a checkpoint of a term that a memory does not know was made
by ranks that continued without it; one of the same term counts if its step is higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

from elastic_runtime.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Sequence


class StateLost(ElasticError):
    """A rank cannot go back to its last commit: a step is half done."""


class MemoryCondition(IntEnum):
    """What a rank's memory is worth."""

    NEW = 0  # has no state yet
    CLEAN = 1  # is, or can be rolled back to, exactly the state of its committed step
    DIRTY = 2  # a step is half done, and cannot be undone


class StateVersion(NamedTuple):
    """How far a state is, in memory or saved; the greater one counts.

    Attributes:
        term: the newest one that it knows of; of what is saved, its own. 0: nothing was ever saved.
        step: how many steps are committed in it.
    """

    term: int
    step: int


NOTHING = StateVersion(0, 0)


@dataclass(frozen=True, slots=True)
class RankStatus:
    """How far a rank has come.

    Attributes:
        step: how many steps it has committed; means nothing if it is NEW.
        condition: what its memory is worth.
        round: the last round in which it had the same state as all others. A step that only
            unreachable ranks had committed is repeated in a later round, with slightly other
            values; if those ranks come back, the later round counts.
        term: the newest one in which something was saved, or was about to be, with this memory.
        latest: that round is the one directly before the present one.
        base: a save that this memory is known to contain: everything that is saved up to there is
            part of it, or was set aside.
    """

    step: int
    condition: MemoryCondition
    round: int = 0
    term: int = 0
    latest: bool = False
    base: StateVersion = NOTHING

    @property
    def reach(self) -> int:
        """The step whose state it can give to others, -1 for none."""
        return self.step if self.condition is MemoryCondition.CLEAN else -1


class RecoveryKind(Enum):
    """Where the state comes from that all ranks continue with."""

    MEMORY = "memory"
    FRESH = "fresh"  # no rank has a state: rank 0 gives its initial one
    LOST = "lost"  # there was one, and no memory can serve
    SAVED = "saved"  # it was loaded


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """Where all ranks continue, and which ranks give the state to which.

    Attributes:
        step: the committed step that all ranks continue from.
        sources: ranks that have its state in memory; empty if it is lost or was loaded.
        receivers: all other ranks.
        kind: where the state comes from.
        reason: why, for people.
        in_memory: what memory has, if it can serve; what is saved counts only if it is newer.
        term: the newest one that any rank knows of.
        given_up: how many committed steps are given up by that, as far as the ranks know.
        asked: what is saved was looked at first.
        round: the last one in which the sources were alike with all others; 0 for none.
        base: of the sources.
    """

    step: int
    sources: tuple[int, ...]
    receivers: tuple[int, ...]
    kind: RecoveryKind
    reason: str
    in_memory: StateVersion | None = None
    term: int = 0
    given_up: int = 0
    asked: bool = False
    round: int = 0
    base: StateVersion = NOTHING


def choose(statuses: Sequence[RankStatus]) -> RecoveryChoice:
    """Decides whose memory all ranks would continue from, if nothing that is saved is newer.

    The newest term wins, and then the highest committed step.

    Args:
        statuses: of all ranks, in rank order; at least one.

    Returns:
        The same answer on every rank that asks with the same arguments.
    """
    everybody = tuple(range(len(statuses)))
    committed = [s.step for s in statuses if s.condition is not MemoryCondition.NEW]
    if not committed:
        why = "no rank has a state: rank 0 gives its own"
        return RecoveryChoice(0, (0,), everybody[1:], RecoveryKind.FRESH, why)
    terms, furthest = _terms(statuses), max(committed)
    term = max((terms[rank] for rank in everybody if statuses[rank].reach >= 0), default=-1)
    if term < 0:
        why = f"no rank is clean at step {furthest}"
        return RecoveryChoice(0, (), everybody, RecoveryKind.LOST, why, None, max(terms), furthest)
    # A rank that knows only older terms was left out: the others have continued since.
    ranks = [r for r in everybody if terms[r] == term and statuses[r].condition is not _NEW]
    newest = max(statuses[rank].step for rank in ranks)
    step = max(statuses[rank].reach for rank in ranks)
    why = (
        f"step {step} is clean in memory"
        if step == newest
        else f"step {newest} is clean on no rank; step {step} is the furthest in memory"
    )
    if step < furthest and newest < furthest:
        why = f"{why}; step {furthest} is of an older term, which the job continued without"
    able = [rank for rank in ranks if statuses[rank].reach == step]
    last = max(statuses[rank].round for rank in able)
    sources = tuple(rank for rank in able if statuses[rank].round == last)
    receivers = tuple(rank for rank in everybody if rank not in sources)
    return RecoveryChoice(
        step,
        sources,
        receivers,
        kind=RecoveryKind.MEMORY,
        reason=why,
        in_memory=StateVersion(term, step),
        term=max(terms),
        given_up=max(0, furthest - step),
        round=last,
        base=max(statuses[rank].base for rank in sources),
    )


def may_be_behind(statuses: Sequence[RankStatus]) -> bool:
    """Whether something may be saved that is newer than all memory.

    Whatever is saved was committed by all ranks of a round first. So there is no such thing while
    a rank can serve that was in the very last round in which anybody trained.

    Args:
        statuses: of all ranks.
    """
    return not any(s.reach >= 0 and s.latest for s in statuses)


def _terms(statuses: Sequence[RankStatus]) -> list[int]:
    """The newest term that each memory belongs to; -1 for none.

    Ranks that were alike in a round are of one history, and so are those of later rounds: what any
    of them knows of a term holds for all of them. A rank that does not know a term was not there
    when anything could be saved under it.
    """
    newest, of_round = 0, {}
    for s in sorted(statuses, key=lambda s: s.round):
        if s.condition is not _NEW:
            newest = of_round[s.round] = max(newest, s.term)
    return [-1 if s.condition is _NEW else of_round[s.round] for s in statuses]


_NEW = MemoryCondition.NEW
