"""How the ranks come to a plan: rank 0 makes it, and each is told what it is to write.

::

    what each says, as digests ─▶ rank 0 knows it? ── no ─▶ each part, from one that says it
                                        │                                  │
                                        └─ yes ──▶ a bit for each item ◀───┘

So a rank sends and gets some kilobytes, however many there are, and only rank 0 looks at all of
it. The plans of the last worlds are kept there: ranks that come back to one of them, or hold the
same again, wait for no other.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.rank_outline import Outline, cuts_of, digest, schema_of
from elastic_runtime.checkpoint.format.write_plan import in_order, make_plan, rows_of
from elastic_runtime.checkpoint.save.background_thread import told

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_runtime.checkpoint.format.rank_outline import Said
    from elastic_runtime.checkpoint.format.write_plan import Plan
    from elastic_runtime.worker.peers import Peers

    # What each rank says, by rank, each of its parts as a digest.
    _Digests = Sequence[Sequence[str]]

# Worlds whose plan is kept: the present one, and those that a job comes back to when a node is
# replaced or lent. At 2,048 ranks and 900 tensors, all cut, each takes 22 MB on rank 0.
_KEPT = 4


class Plans:
    """The plans that rank 0 has made last. Those of ranks that said the same are the same."""

    def __init__(self) -> None:
        """Knows of none."""
        self._kept: OrderedDict[str, Plan] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def knows(self, said: _Digests) -> bool:
        """Whether there is a plan for ranks that say this."""
        return digest(json.dumps(said)) in self._kept

    def of(self, said: _Digests, parts: Iterable[str]) -> Plan:
        """The plan for ranks that say this.

        Args:
            said: by all ranks.
            parts: all that is behind the digests; nothing is needed if the plan is known.

        Raises:
            CheckpointError: the ranks do not agree about a key, or do not hold all of it together.
        """
        name = digest(json.dumps(said))
        if name not in self._kept:
            named = {digest(text): json.loads(text) for text in parts}
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


def agree(plans: Plans, peers: Peers, said: Said) -> tuple[Plan | None, list[int]]:
    """Has all ranks agree who writes what.

    Args:
        plans: those that this rank has made.
        peers: all ranks, which do the same.
        said: what this one holds.

    Returns:
        The plan, on rank 0; and which of its items this rank writes, in the order of its file.

    Raises:
        CheckpointError: the ranks do not agree about a key, or do not hold all of it together.
    """
    digests = peers.gather([digest(part) for part in said.parts])
    plan: Plan | None = None
    sent: list[list[str] | None] = []
    if not peers.on_first(lambda: plans.knows(digests)):
        sent = peers.to_first(_to_send(digests, peers.rank, said)) or []

    def decide() -> list[str]:
        nonlocal plan
        plan = plans.of(digests, (part for parts in sent for part in parts or ()))
        return [plan.share(rank) for rank in range(peers.world)]

    share = peers.share_out(told(decide))
    return plan, in_order(rows_of(share), said.is_tensor)


def _to_send(digests: _Digests, rank: int, said: Said) -> list[str] | None:
    """What this rank is the first to say; None if others have said all of it."""
    first: dict[str, int] = {}
    for other, each in enumerate(digests):
        for one in each:
            first.setdefault(one, other)
    mine = zip(said.parts, digests[rank], strict=True)
    return [part for part, name in mine if first[name] == rank] or None
