"""All states in memory and in storage, in the order in which they are tried: a pure decision.

Every rank decides for itself from the same answers of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A snapshot, or a part of one, as one node has it.

    Attributes:
        which: which one it is.
        manifest_crc: checksum of its manifest, which is the same on all nodes.
        files: all that the manifest lists.
        present: those that this node has, in their right sizes.
    """

    which: CheckpointId
    manifest_crc: int
    files: tuple[str, ...]
    present: tuple[str, ...]

    def encode(self) -> list[Any]:
        """Plain JSON."""
        return [self.which.name, self.manifest_crc, self.files, self.present]

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Self:
        """Reads what ``encode`` gave, after it has been JSON."""
        name, manifest_crc, files, present = data
        which = CheckpointId.parse(name)
        if which is None:
            raise ValueError(name)
        return cls(which, manifest_crc, tuple(files), tuple(present))


@dataclass(frozen=True, slots=True)
class ResumeCandidate:
    """One state that the job could continue from.

    Attributes:
        which: its term and step.
        places: of a snapshot, the nodes that have each file; None: it is in storage.
        problem: why it cannot be used, "" if it can.
    """

    which: CheckpointId
    places: Mapping[str, tuple[int, ...]] | None = None
    problem: str = ""


def resume_candidates(
    offers: Sequence[Sequence[NodeSnapshot]],
    stored: Sequence[CheckpointId],
    over: CheckpointId | None = None,
) -> list[ResumeCandidate]:
    """All states that there are, in the order in which they are to be tried.

    The newest comes first; of two that are equal, the one in memory.

    Args:
        offers: what each node has in memory.
        stored: what claims to be whole in storage.
        over: how far the ranks are that live; nothing that is not newer is of use then.
    """
    found = [*_snapshots(offers), *(ResumeCandidate(which) for which in stored)]
    if over is not None:
        found = [candidate for candidate in found if candidate.which > over]
    return sorted(
        found, key=lambda candidate: (candidate.which, candidate.places is not None), reverse=True
    )


def _snapshots(offers: Sequence[Sequence[NodeSnapshot]]) -> list[ResumeCandidate]:
    holders: dict[tuple[CheckpointId, int], dict[str, list[int]]] = {}
    for node, its in enumerate(offers):
        for offer in its:
            places = holders.setdefault((offer.which, offer.manifest_crc), {})
            for name in (MANIFEST, *offer.files):
                places.setdefault(name, [])
            for name in (MANIFEST, *offer.present):
                places[name].append(node)
    return [
        ResumeCandidate(
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


def other_holders(candidate: ResumeCandidate, node: int) -> dict[str, int]:
    """From which node to fetch each file that this one lacks, evenly spread.

    Args:
        candidate: a whole snapshot.
        node: this one.
    """
    places = candidate.places or {}
    return {name: nodes[node % len(nodes)] for name, nodes in places.items() if node not in nodes}
