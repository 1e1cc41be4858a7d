"""How ``elasticctl checkpoint`` shows what it has found on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from elastic_runtime.checkpoint.format.manifest import half_pruned
from elastic_runtime.checkpoint.storage.catalog import CheckpointStatus
from elastic_runtime.cli.ctl.checkpoint_report import names_of
from elastic_runtime.reporting.wording import count, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from elastic_runtime.checkpoint.storage.catalog import CatalogEntry
    from elastic_runtime.checkpoint.storage.retention import RetentionDecision
    from elastic_runtime.cli.ctl.checkpoint_report import Inventory

_STYLES = {
    CheckpointStatus.WHOLE: "green",
    CheckpointStatus.DAMAGED: "red",
    CheckpointStatus.NEWER: "red",
    CheckpointStatus.UNFINISHED: "yellow",
    CheckpointStatus.ASIDE: "yellow",
}


def listing(seen: Inventory) -> RenderableType:
    """All checkpoints, and what a job would take."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("step", "term", "round", "world", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("saved", "state"):
        table.add_column(title, no_wrap=True)
    for one in seen.found:
        table.add_row(*_cells(one), _state(seen, one))
    parts: list[RenderableType] = [table] if seen.found else []
    if seen.takes:
        taken = f"a job would take step {seen.takes.step} of term {seen.takes.term}"
        parts.append(Text(f"{taken}: {seen.why}"))
    else:
        parts.append(Text(f"{seen.where}: {seen.why}"))
    parts += [Text(one.problem, style="red") for one in seen.found if _is_unfit(one)]
    parts += [
        Text(f"{one.which.name} also holds {names_of(one.foreign)}, which is left alone")
        for one in seen.found
        if one.foreign
    ]
    if half := half_pruned(seen.names):
        parts.append(Text(f"partly deleted; the next prune deletes the rest: {names_of(half)}"))
    if seen.foreign:
        parts.append(Text(f"no checkpoints, left alone: {names_of(seen.foreign)}"))
    return Group(*parts)


def _is_unfit(found: CatalogEntry) -> bool:
    return found.status in (CheckpointStatus.DAMAGED, CheckpointStatus.NEWER)


def _cells(found: CatalogEntry) -> list[str]:
    manifest = found.manifest
    return [
        str(found.which.step),
        str(found.which.term),
        str(manifest.round) if manifest else "",
        str(manifest.world) if manifest else "",
        size(found.bytes),
        _time(manifest.saved_at) if manifest else "",
    ]


def _state(seen: Inventory, found: CatalogEntry) -> Text:
    verified = found.which in seen.verified and found.status is CheckpointStatus.WHOLE
    text = "whole, every byte read" if verified else str(found.status)
    return Text(text, style=_STYLES[found.status])


def one(found: CatalogEntry) -> RenderableType:
    """One checkpoint with its files."""
    manifest = found.manifest
    state = (str(found.status), _STYLES[found.status])
    parts: list[RenderableType] = [Text.assemble((found.which.name, "bold"), " · ", state)]
    if found.problem:
        parts.append(Text(found.problem, style=_STYLES[found.status]))
    if manifest is None:
        return Group(*parts)
    ranks = count(manifest.world, "rank")
    during = f" in round {manifest.round}" if manifest.round else ""
    parts.append(Text(f"saved    {_time(manifest.saved_at)} by {ranks}{during}"))
    parts.append(Text(f"entries  {', '.join(manifest.entries)}"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", no_wrap=True)
    for title in ("size", "items", "crc32c"):
        table.add_column(title, justify="right", no_wrap=True)
    for file in manifest.files:
        table.add_row(file.name, size(file.bytes), str(file.items), f"{file.crc32c:08x}")
    return Group(*parts, Text(), table)


def decisions(found: Iterable[RetentionDecision], *, dry_run: bool) -> RenderableType:
    """What was deleted and what was kept, and why.

    Args:
        found: all decisions.
        dry_run: nothing was deleted.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("step", "term"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("", "why"):
        table.add_column(title, no_wrap=True)
    gone = "would be deleted" if dry_run else "deleted"
    for one in found:
        fate = Text("kept", style="green") if one.keep else Text(gone, style="yellow")
        table.add_row(str(one.which.step), str(one.which.term), fate, one.why)
    return table


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
