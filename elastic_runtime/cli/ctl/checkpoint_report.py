"""What ``elasticctl checkpoint`` has found, in people's words and as plain values: pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.checkpoint.format.manifest import CheckpointId, half_pruned, highest_term
from elastic_runtime.checkpoint.storage.catalog import CatalogEntry, CheckpointStatus
from elastic_runtime.checkpoint.storage.storage_contract import PROBE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from elastic_runtime.checkpoint.storage.retention import RetentionDecision


@dataclass(frozen=True)
class Inventory:
    """What is in a place of checkpoints.

    Attributes:
        where: the place.
        names: all its entries.
        found: the checkpoints and rests of some, the newest first.
        verified: those whose bytes were read, too.
        takes: what a job would load; None if nothing.
        why: for people: why that one, or what happens instead.
        term: the highest term that was taken.
        foreign: entries that are not of ours.
    """

    where: str
    names: tuple[str, ...]
    found: tuple[CatalogEntry, ...]
    verified: AbstractSet[CheckpointId]
    takes: CheckpointId | None
    why: str
    term: int
    foreign: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``--format json``."""
        return {
            "where": self.where,
            "term": self.term,
            "resume": {"step": self.takes.step, "term": self.takes.term} if self.takes else None,
            "why": self.why,
            "checkpoints": [
                _summary(one) | {"verified": one.which in self.verified} for one in self.found
            ],
            "half_deleted": sorted(half_pruned(self.names)),
            "foreign": list(self.foreign),
        }


def take(
    where: str,
    names: Sequence[str],
    found: Sequence[CatalogEntry],
    verified: AbstractSet[CheckpointId] = frozenset(),
) -> Inventory:
    """Draws the conclusions from what was found.

    Args:
        where: the place.
        names: all its entries.
        found: the checkpoints, the newest first.
        verified: those whose bytes were read.
    """
    # An older one is taken instead of a damaged one, but never instead of a newer version's.
    first = next(
        (one for one in found if one.status in (CheckpointStatus.WHOLE, CheckpointStatus.NEWER)),
        None,
    )
    takes = first.which if first and first.status is CheckpointStatus.WHOLE else None
    ours = {one.which.name for one in found} | set(half_pruned(names)) | {PROBE_FILE}
    ours |= {one.which.aside_name for one in found}
    foreign = sorted(n for n in names if n not in ours and highest_term([n]) == 0)
    return Inventory(
        where=where,
        names=tuple(names),
        found=tuple(found),
        verified=verified,
        takes=takes,
        why=_why(found, takes, verified),
        term=highest_term(names),
        foreign=tuple(foreign),
    )


def _why(
    found: Sequence[CatalogEntry], takes: CheckpointId | None, verified: AbstractSet[CheckpointId]
) -> str:
    damaged = sum(
        one.status is CheckpointStatus.DAMAGED and (takes is None or one.which > takes)
        for one in found
    )
    if takes is None:
        if newer := [one.which.name for one in found if one.status is CheckpointStatus.NEWER]:
            return f"a job would stop with an error: {newer[0]} is of a newer version"
        if damaged:
            return "a job would stop with an error: there are checkpoints, but none is whole"
        return "a job would start from the beginning: there is no checkpoint"
    how = "its bytes were read" if takes in verified else "its bytes were not read"
    skipped = f", {damaged} newer {'is' if damaged == 1 else 'are'} damaged" if damaged else ""
    return f"it is the newest whole one ({how}){skipped}"


def as_dict(found: CatalogEntry) -> dict[str, Any]:
    """One checkpoint with all its files, as plain values."""
    manifest = found.manifest
    files = [] if manifest is None else [asdict(file) for file in manifest.files]
    entries = [] if manifest is None else list(manifest.entries)
    return _summary(found) | {"entries": entries, "files": files}


def _summary(found: CatalogEntry) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "name": found.which.name,
        "step": found.which.step,
        "term": found.which.term,
        "round": manifest.round if manifest else None,
        "world": manifest.world if manifest else None,
        "saved_at": manifest.saved_at if manifest else None,
        "bytes": found.bytes,
        "condition": str(found.status),
        "problem": found.problem,
        "foreign": list(found.foreign),
    }


def decision(one: RetentionDecision, *, dry_run: bool) -> dict[str, Any]:
    """What has become of a checkpoint, as plain values.

    Args:
        one: the decision.
        dry_run: nothing was deleted.
    """
    return {
        "name": one.which.name,
        "step": one.which.step,
        "term": one.which.term,
        "keep": one.keep,
        "deleted": not one.keep and not dry_run,
        "why": one.why,
    }


def names_of(names: Iterable[str], most: int = 5) -> str:
    """Some names, for people."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
