"""``elasticctl checkpoint``: what is in a directory of checkpoints, and what a job would resume.

It never imports torch, and works on any place that a job can save to.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId, newest_first
from elastic_runtime.checkpoint.storage import catalog
from elastic_runtime.checkpoint.storage.catalog import CatalogEntry, CheckpointStatus
from elastic_runtime.checkpoint.storage.first_contact import Patience
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.retention import (
    Retention,
    RetentionDecision,
    parse_retention,
)
from elastic_runtime.cli.ctl import checkpoint_report, checkpoint_screen
from elastic_runtime.cli.printing import FORMAT_OPTION, show
from elastic_runtime.errors import EXIT_FAILED, CheckpointFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.cli.ctl.checkpoint_report import Inventory

_PLACE = click.argument("directory", metavar="DIR")
_STEP = click.option("--step", type=click.IntRange(0), help="only this step")
_TERM = click.option("--term", type=click.IntRange(1), help="of this term; the newest otherwise")

_UNFIT = (CheckpointStatus.DAMAGED, CheckpointStatus.NEWER)


@click.group()
def checkpoint() -> None:
    """Looks at checkpoints in DIR, a directory or a URL such as s3://bucket/run."""


@checkpoint.command("list")
@_PLACE
@FORMAT_OPTION
def list_(directory: str, form: str) -> None:
    """Lists all checkpoints, and what a job would take.

    Files are compared with the manifest by their sizes; verify reads them.
    """
    seen = _look(open_storage(directory, Patience()))
    show(form, seen.as_dict(), checkpoint_screen.listing(seen))


@checkpoint.command("show")
@_PLACE
@_STEP
@_TERM
@FORMAT_OPTION
def show_(directory: str, step: int | None, term: int | None, form: str) -> None:
    """Shows one checkpoint: what a job would take, unless --step says another."""
    seen = _look(open_storage(directory, Patience()))
    if step is None and term is None:
        if seen.takes is None:
            raise UsageError(f"{seen.where}: {seen.why}; name one with --step")
        found = next(one for one in seen.found if one.which == seen.takes)
    else:
        found = _chosen(seen, step, term)[0]
    show(form, checkpoint_report.as_dict(found), checkpoint_screen.one(found))


@checkpoint.command()
@_PLACE
@_STEP
@_TERM
@FORMAT_OPTION
def verify(directory: str, step: int | None, term: int | None, form: str) -> int:
    """Reads all files of all checkpoints and names what is damaged.

    Exit code 1 if anything is.
    """
    storage = open_storage(directory, Patience())
    seen = _look(storage)
    chosen = {one.which for one in _chosen(seen, step, term)}
    total = sum(_to_read(one) for one in seen.found if one.which in chosen)
    with _progress(total) as advance:
        found = [
            _verified(storage, one, advance) if one.which in chosen else one for one in seen.found
        ]
    read = checkpoint_report.take(seen.where, seen.names, found, verified=frozenset(chosen))
    show(form, read.as_dict(), checkpoint_screen.listing(read))
    bad = any(one.which in chosen and one.status in _UNFIT for one in read.found)
    return EXIT_FAILED if bad else 0


@checkpoint.command()
@_PLACE
@click.option("--keep", type=int, required=True, help="how many of the newest to keep")
@click.option("--keep-every", help="which others to keep: '1000 steps', '6h' or both, with a comma")
@click.option("--unfinished", is_flag=True, help="delete rests of saves of older terms as well")
@click.option("--set-aside", is_flag=True, help="delete what is set aside as well")
@click.option("--dry-run", is_flag=True, help="only say what would be deleted")
@click.option("--unread", is_flag=True, help="do not read what is kept before the rest is deleted")
@FORMAT_OPTION
def prune(
    directory: str,
    keep: int,
    keep_every: str | None,
    unfinished: bool,
    set_aside: bool,
    dry_run: bool,
    unread: bool,
    form: str,
) -> None:
    """Deletes checkpoints that need not be kept.

    Only whole ones count and only they are deleted; files that no manifest lists are not touched.
    What is kept is read first, so that a damaged checkpoint does not count.
    """
    rule = parse_retention(keep, keep_every)
    storage = open_storage(directory, Patience())
    seen = _look(storage)
    found = seen.found if unread else _read_what_stays(storage, rule, seen.found)
    decisions = catalog.decide_kept(rule, found)
    rests = catalog.abandoned(found, seen.names) if unfinished else []
    aside = [one for one in found if one.status is CheckpointStatus.ASIDE and set_aside]
    if not dry_run:
        catalog.delete_checkpoints(storage, decisions, found)
        _discard(storage, rests)
        for one in aside:
            if one.manifest is not None:
                storage.remove(one.manifest)
                storage.put_back(one.which)
    decisions += [
        RetentionDecision(one.which, False, "never finished, of an older term")
        if one.which in rests
        else RetentionDecision(one.which, False, "set aside")
        if one in aside and one.manifest is not None
        else RetentionDecision(one.which, True, f"{one.status}: does not count, and is left alone")
        for one in found
        if one.status is not CheckpointStatus.WHOLE
    ]
    shown = checkpoint_screen.decisions(decisions, dry_run=dry_run)
    show(form, [checkpoint_report.decision(one, dry_run=dry_run) for one in decisions], shown)


@checkpoint.command()
@_PLACE
@click.option("--step", type=click.IntRange(0), required=True, help="of which step")
@_TERM
@FORMAT_OPTION
def restore(directory: str, step: int, term: int | None, form: str) -> None:
    """Makes a checkpoint the one that a job takes, while no job runs there.

    It is set aside no more, and all newer ones are. Nothing is deleted.
    """
    storage = open_storage(directory, Patience())
    chosen = _chosen(_look(storage), step, term)[0]
    if chosen.manifest is None or chosen.status not in (
        CheckpointStatus.WHOLE,
        CheckpointStatus.ASIDE,
    ):
        raise UsageError(f"{storage.place(chosen.which)} is {chosen.status}: {chosen.problem}")
    why = {"why": f"{chosen.which.name} was restored by hand"}
    for which in newest_first(storage.names()):
        if which > chosen.which and storage.has_manifest(which):
            storage.set_aside(which, why)
    storage.put_back(chosen.which)
    seen = _look(storage)
    show(form, seen.as_dict(), checkpoint_screen.listing(seen))


def _read_what_stays(
    storage: Storage, rule: Retention, found: Sequence[CatalogEntry]
) -> tuple[CatalogEntry, ...]:
    """Reads what the rule keeps, until it keeps nothing damaged."""
    known = {one.which: one for one in found}
    read: set[CheckpointId] = set()
    while True:
        decisions = catalog.decide_kept(rule, known.values())
        stays = {decision.which for decision in decisions if decision.keep} - read
        if all(decision.keep for decision in decisions) or not stays:
            return tuple(known.values())
        with _progress(sum(_to_read(known[which]) for which in stays)) as advance:
            known |= {which: _verified(storage, known[which], advance) for which in stays}
        read |= stays


def _discard(storage: Storage, rests: Sequence[CheckpointId]) -> None:
    for which in rests:
        storage.discard(which)
    if left := {which.name for which in rests}.intersection(storage.names()):
        raise CheckpointFailed(
            f"cannot delete {storage.where}/{min(left)}: the storage refuses; see its rights"
        )


def _look(storage: Storage) -> Inventory:
    try:
        names = storage.names()
    except CheckpointFailed as error:
        if error.refused:  # here it is what was asked for
            raise UsageError(str(error)) from error
        raise
    if MANIFEST in names:
        raise UsageError(
            f"{storage.where} is one checkpoint; give the directory that holds it, and its step "
            "with --step"
        )
    if not names and (missing := storage.missing()):
        raise UsageError(f"there is no {missing}: correct the name")
    if not names:
        raise UsageError(f"there is nothing in {storage.where}; was another directory meant?")
    return checkpoint_report.take(storage.where, names, catalog.list_checkpoints(storage, names))


def _chosen(seen: Inventory, step: int | None, term: int | None) -> Sequence[CatalogEntry]:
    """All that the options fit, the newest first.

    Raises:
        UsageError: none fits.
    """
    matching = [
        one
        for one in seen.found
        if step in (None, one.which.step) and term in (None, one.which.term)
    ]
    if not matching and (step, term) != (None, None):
        wanted = " ".join(
            f"{what} {value}"
            for what, value in (("step", step), ("term", term))
            if value is not None
        )
        raise UsageError(
            f"there is no checkpoint of {wanted} in {seen.where}; elasticctl checkpoint list shows "
            "those that there are"
        )
    return matching


def _to_read(found: CatalogEntry) -> int:
    """How many bytes ``_verified`` reads."""
    if found.status is not CheckpointStatus.WHOLE or found.manifest is None:
        return 0
    return sum(file.bytes for file in found.manifest.files)


def _verified(
    storage: Storage, found: CatalogEntry, advance: Callable[[int], None]
) -> CatalogEntry:
    if found.status is not CheckpointStatus.WHOLE or found.manifest is None:
        return found
    problems = catalog.verify(storage, found.manifest, advance)
    if not problems:
        return found
    return replace(found, status=CheckpointStatus.DAMAGED, problem="; ".join(problems))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
