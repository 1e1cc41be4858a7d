"""Which state a job goes on from: the newest of those in memory and in storage. All pure.

Every rank decides for itself from the same answers of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot, or a part of one, as one node has it.

    Attributes:
        which: which one it is.
        seal: checksum of its manifest, which is the same on all nodes.
        files: all that the manifest lists.
        present: those that this node has, in their right sizes.
    """

    which: CheckpointId
    seal: int
    files: tuple[str, ...]
    present: tuple[str, ...]

    def encode(self) -> list[Any]:
        """Plain JSON."""
        return [self.which.name, self.seal, self.files, self.present]

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Self:
        """Reads what ``encode`` gave, after it has been JSON."""
        name, seal, files, present = data
        which = CheckpointId.parse(name)
        if which is None:
            raise ValueError(name)
        return cls(which, seal, tuple(files), tuple(present))


@dataclass(frozen=True, slots=True)
class Way:
    """One state that the job could go on from.

    Attributes:
        which: its term and step.
        places: of a snapshot, the nodes that have each file; None: it is in storage.
        problem: why it cannot be used, "" if it can.
    """

    which: CheckpointId
    places: Mapping[str, tuple[int, ...]] | None = None
    problem: str = ""


def ways(
    offers: Sequence[Sequence[Offer]],
    stored: Sequence[CheckpointId],
    over: CheckpointId | None = None,
) -> list[Way]:
    """All states that there are, in the order in which they are to be tried.

    The newest comes first; of two that are equal, the one in memory.

    Args:
        offers: what each node has in memory.
        stored: what claims to be whole in storage.
        over: how far the ranks are that live; nothing that is not newer is of use then.
    """
    found = [*_snapshots(offers), *(Way(which) for which in stored)]
    if over is not None:
        found = [way for way in found if way.which > over]
    return sorted(found, key=lambda way: (way.which, way.places is not None), reverse=True)


def _snapshots(offers: Sequence[Sequence[Offer]]) -> list[Way]:
    holders: dict[tuple[CheckpointId, int], dict[str, list[int]]] = {}
    for node, its in enumerate(offers):
        for offer in its:
            places = holders.setdefault((offer.which, offer.seal), {})
            for name in (MANIFEST, *offer.files):
                places.setdefault(name, [])
            for name in (MANIFEST, *offer.present):
                places[name].append(node)
    return [
        Way(
            which,
            {name: tuple(nodes) for name, nodes in places.items()},
            _problem([name for name, nodes in places.items() if not nodes]),
        )
        for (which, _), places in holders.items()
    ]


def _problem(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    names = ", ".join(sorted(missing)[:3])
    return f"the nodes that are left have no copy of {names}"


def other_holders(way: Way, node: int) -> dict[str, int]:
    """From which node to fetch each file that this one lacks, evenly spread.

    Args:
        way: a whole snapshot.
        node: this one.
    """
    places = way.places or {}
    return {name: nodes[node % len(nodes)] for name, nodes in places.items() if node not in nodes}
