"""What this rank writes in a save: its part of the state, and which share of it the plan gives it.

Several ranks may have the same tensor, and one writes it. Rank 0 plans that (``write_plan``)::

    descriptions, as digests ─▶ rank 0 knows them? ── no ─▶ each part, from one rank that has it
                                     │                                  │
                                     └─ yes ──▶ a bit for each item ◀───┘

So a rank sends and gets some kilobytes, however many ranks there are, and only rank 0 examines all
of it. The plans of the last worlds are kept there: if the same descriptions come again, no new plan
is made.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.checkpoint.format.rank_outline import (
    Outline,
    OutlineParts,
    cuts_of,
    say,
    schema_of,
    text_digest,
)
from elastic_runtime.checkpoint.format.write_plan import in_order, make_plan, rows_of
from elastic_runtime.checkpoint.save import staging
from elastic_runtime.checkpoint.save.background_thread import failing_for_all
from elastic_runtime.errors import CheckpointError, CheckpointFailed, CheckpointUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elastic_runtime.checkpoint.format.rank_outline import Item
    from elastic_runtime.checkpoint.format.write_plan import WritePlan
    from elastic_runtime.parts.saved_parts import SavedParts
    from elastic_runtime.worker.peers import Peers

    # What each rank says, by rank, each of its parts as a digest.
    _Digests = Sequence[Sequence[str]]

# Worlds whose plan is kept: the present one, and those that a job comes back to when a node is
# replaced or lent. At 2,048 ranks and 900 tensors, all cut, each takes 22 MB on rank 0.
_KEPT = 4


@dataclass(frozen=True, slots=True)
class RankShare:
    """What this rank is about to write.

    Attributes:
        plan: of all ranks; only rank 0 has it.
        items: what the tensors are.
        tensors: of this rank's file, in order.
        values: what comes after them.
    """

    plan: WritePlan | None
    items: Sequence[Item]
    tensors: Sequence[torch.Tensor]
    values: Sequence[staging.PartBytes]

    def without_tensors(self) -> RankShare:
        """The same for use with an image only: the memory of the tensors may be given away."""
        return RankShare(self.plan, self.items, (), self.values)

    def content(self, image: staging.Image | None) -> FileContent:
        """The bytes of this rank's file.

        Args:
            image: has a copy of the tensors; None: they are read where they are.
        """

        def sources() -> Iterator[staging.PartBytes]:
            yield from image.sources() if image else map(staging.of_tensor, self.tensors)
            yield from self.values

        size = image.size if image else sum(map(staging.size_of, self.items))
        return FileContent(size + sum(value.size for value in self.values), sources)


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file.

    Attributes:
        size: how many.
        sources: gives the parts, one after the other.
    """

    size: int
    sources: Callable[[], Iterator[staging.PartBytes]]


class ShareCollector:
    """Asks the parts for what is to be saved, and agrees with the other ranks who writes what."""

    def __init__(self, parts: SavedParts) -> None:
        """Knows of no plan yet."""
        self._parts = parts
        self._mine: tuple[Item, ...] = ()
        self._said = OutlineParts()
        self._file: list[Item] | None = None  # what this rank writes; None: it is not agreed upon
        self._plan: WritePlan | None = None  # of all, on rank 0
        self._plans = WritePlans()

    def forget(self) -> None:
        """The ranks are others from now on."""
        self._file = None

    def collect(self, peers: Peers) -> RankShare:
        """This rank's part of the state as it is now, by reference.

        Args:
            peers: all ranks, which do the same.

        Raises:
            CheckpointError: the state of a rank cannot be saved; the same on every rank.
        """
        state: dict[str, Any] = {}
        failed: list[Exception] = []

        def describe() -> bool:
            try:
                state.update(self._parts.saved(peers.rank))
                changed = self._file is None or not self._is_as_before(state)
                if changed:
                    self._file = None  # no plan of before fits, even if none can be made now
                    differing = self._parts.may_differ()
                    self._mine = tuple(
                        staging.describe(key, value, may_differ=key in differing)
                        for key, value in state.items()
                    )
                    self._said = say(self._mine, peers.rank, peers.world)
            except CheckpointError:
                raise
            except (OSError, MemoryError, torch.OutOfMemoryError) as error:
                raise CheckpointFailed(
                    f"rank {peers.rank} cannot take its state: {error!r}"
                ) from error
            except Exception as error:
                failed.append(error)
                raise CheckpointUsageError(
                    f"rank {peers.rank} has no state to save: {error!r}"
                ) from error
            return changed

        try:
            changes = peers.on_each(describe)
        except CheckpointError:
            self._file = None
            if failed:
                raise failed[0] from None  # it is this rank's own, and shows where it comes from
            raise
        items = self._file
        if items is None or any(changes):
            self._file = None
            self._plan, rows = agree(self._plans, peers, self._said)
            items = self._file = [self._mine[row] for row in rows]
        return RankShare(
            self._plan,
            [item for item in items if item.dtype],
            [staging.local(state[item.key]) for item in items if item.dtype],
            [staging.of_value(state[item.key]) for item in items if not item.dtype],
        )

    def _is_as_before(self, state: dict[str, Any]) -> bool:
        return len(state) == len(self._mine) and all(
            staging.matches(item, key, value)
            for item, (key, value) in zip(self._mine, state.items(), strict=True)
        )


class WritePlans:
    """The plans that rank 0 has made last. Those of ranks that said the same are the same."""

    def __init__(self) -> None:
        """Knows of none."""
        self._kept: OrderedDict[str, WritePlan] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def knows(self, said: _Digests) -> bool:
        """Whether there is a plan for ranks that say this."""
        return text_digest(json.dumps(said)) in self._kept

    def of(self, said: _Digests, parts: Iterable[str]) -> WritePlan:
        """The plan for ranks that say this.

        Args:
            said: by all ranks.
            parts: all that is behind the digests; nothing is needed if the plan is known.

        Raises:
            CheckpointError: the ranks do not agree about a key, or do not have all of it together.
        """
        name = text_digest(json.dumps(said))
        if name not in self._kept:
            named = {text_digest(text): json.loads(text) for text in parts}
            schemas = {each: schema_of(named[each]) for each in {one[0] for one in said}}
            patterns = {each: tuple(named[each]) for each in {one[1] for one in said}}
            cuts = {each: cuts_of(named[each]) for each in {one[2] for one in said}}
            self._kept[name] = make_plan(
                [Outline(schemas[one], patterns[two], cuts[three]) for one, two, three in said]
            )
        self._kept.move_to_end(name)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[name]


def agree(
    plans: WritePlans, peers: Peers, said: OutlineParts
) -> tuple[WritePlan | None, list[int]]:
    """Has all ranks agree who writes what.

    Args:
        plans: those that this rank has made.
        peers: all ranks, which do the same.
        said: the description of what this rank has.

    Returns:
        The plan, on rank 0; and which of its items this rank writes, in the order of its file.

    Raises:
        CheckpointError: the ranks do not agree about a key, or do not have all of it together.
    """
    digests = peers.gather([text_digest(part) for part in said.parts])
    plan: WritePlan | None = None
    sent: list[list[str] | None] = []
    if not peers.on_first(lambda: plans.knows(digests)):
        sent = peers.to_first(_to_send(digests, peers.rank, said)) or []

    def decide() -> list[str]:
        nonlocal plan
        plan = plans.of(digests, (part for parts in sent for part in parts or ()))
        return [plan.share(rank) for rank in range(peers.world)]

    share = peers.share_out(failing_for_all(decide))
    return plan, in_order(rows_of(share), said.is_tensor)


def _to_send(digests: _Digests, rank: int, said: OutlineParts) -> list[str] | None:
    """What this rank is the first to say; None if others have said all of it."""
    first: dict[str, int] = {}
    for other, each in enumerate(digests):
        for one in each:
            first.setdefault(one, other)
    mine = zip(said.parts, digests[rank], strict=True)
    return [part for part, name in mine if first[name] == rank] or None
