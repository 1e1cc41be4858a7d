"""Lists, inspects and verifies the checkpoints of a storage, and deletes those that are to go.

Nothing here needs torch.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING

import crc32c

from elastic_runtime.checkpoint.format.manifest import (
    MANIFEST,
    OUTLINE,
    highest_term,
    newest_first,
    set_aside,
)
from elastic_runtime.checkpoint.format.part_columns import read_parts
from elastic_runtime.checkpoint.storage.retention import apply_retention
from elastic_runtime.errors import DamagedCheckpoint, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord, Manifest, Part
    from elastic_runtime.checkpoint.storage.retention import Retention, RetentionDecision
    from elastic_runtime.checkpoint.storage.storage_contract import Reader, Storage

_FILES_AT_A_TIME = 4
_OURS = re.compile(
    rf"rank-\d+\.distcp|\.metadata|{re.escape(OUTLINE)}|{re.escape(MANIFEST)}(\.partial)?"
)


class CheckpointStatus(StrEnum):
    """How a checkpoint is."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    NEWER = "of a newer version"
    UNFINISHED = "unfinished"
    ASIDE = "set aside"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One checkpoint, or what is left of one.

    Attributes:
        which: its step and term.
        status: how it is, as far as it was looked at.
        manifest: None if it has none, or none that can be read.
        problem: what is wrong with it, "" if nothing is.
        bytes: size of all that is there, the manifest not counted.
        foreign: files that are not of ours.
    """

    which: CheckpointId
    status: CheckpointStatus
    manifest: Manifest | None = None
    problem: str = ""
    bytes: int = 0
    foreign: tuple[str, ...] = ()


def list_checkpoints(storage: Storage, names: Iterable[str] | None = None) -> list[CatalogEntry]:
    """Looks at all checkpoints, the newest first; the bytes of their files are not read.

    Args:
        storage: where.
        names: what is there, if that is known already.

    Raises:
        CheckpointError: the place cannot be read.
    """
    present = list(storage.names() if names is None else names)
    found = [inspect_checkpoint(storage, which) for which in newest_first(present)]
    found += [_set_aside_entry(storage, which) for which in set_aside(present)]
    return sorted(found, key=lambda one: one.which, reverse=True)


def _set_aside_entry(storage: Storage, which: CheckpointId) -> CatalogEntry:
    found = inspect_checkpoint(storage, which)
    problem = "; ".join(filter(None, (storage.why_aside(which), found.problem)))
    return replace(found, status=CheckpointStatus.ASIDE, problem=problem)


def inspect_checkpoint(storage: Storage, which: CheckpointId) -> CatalogEntry:
    """Compares the files of a checkpoint with its manifest, by their sizes.

    Raises:
        CheckpointError: the place cannot be read.
    """
    sizes = storage.sizes(which)
    total = sum(sizes.values())
    try:
        manifest = storage.read_manifest(which)
    except UnknownFormat as error:
        return CatalogEntry(which, CheckpointStatus.NEWER, None, str(error), total)
    except DamagedCheckpoint as error:
        return CatalogEntry(which, CheckpointStatus.DAMAGED, None, str(error), total)
    if manifest is None:
        foreign = tuple(sorted(name for name in sizes if not _OURS.fullmatch(name)))
        return CatalogEntry(
            which, CheckpointStatus.UNFINISHED, None, "it has no manifest", total, foreign
        )
    listed = {file.name: file.bytes for file in manifest.files}
    wrong = [
        f"{storage.place(which, name)} "
        + (f"has {sizes[name]} bytes instead of {size}" if name in sizes else "is missing")
        for name, size in listed.items()
        if sizes.get(name) != size
    ]
    foreign = tuple(sorted(sizes.keys() - listed.keys()))
    status = CheckpointStatus.DAMAGED if wrong else CheckpointStatus.WHOLE
    return CatalogEntry(which, status, manifest, "; ".join(wrong), total, foreign)


# Reading everything


def verify(
    storage: Storage, manifest: Manifest, advance: Callable[[int], None] = lambda count: None
) -> list[str]:
    """Reads all files of a checkpoint and compares them with what was written.

    Args:
        storage: where it is.
        manifest: its own.
        advance: called from several threads with the number of bytes read since the last call.

    Returns:
        What is damaged, with the file and the bytes; nothing if all is as it was written.

    Raises:
        CheckpointError: the place cannot be read at present.
    """

    try:
        unlisted = read_parts(storage, manifest, manifest.sections())
    except DamagedCheckpoint:
        unlisted = {}  # files are compared as wholes, and where this is listed itself, it is named

    def check(file: FileRecord) -> list[str]:
        try:
            with storage.reader(manifest.id, file.name) as reader:
                parts = unlisted.get(file.name, file.parts)
                bad = _damage(reader, file, parts, storage.read_size, advance)
        except DamagedCheckpoint as error:
            return [str(error)]
        where = storage.place(manifest.id, file.name)
        return [f"{where} is damaged: {what}" for what in bad]

    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        return [problem for found in pool.map(check, manifest.files) for problem in found]


def _damage(
    reader: Reader,
    file: FileRecord,
    parts: Sequence[Part],
    read_size: int,
    advance: Callable[[int], None],
) -> list[str]:
    buffer = memoryview(bytearray(max(1, min(read_size, file.bytes))))
    bad, whole = [], 0
    spans = [(part.offset, part.length, part.crc32c) for part in parts]
    for offset, length, expected in spans or [(0, file.bytes, file.crc32c)]:
        crc = 0
        for start in range(offset, offset + length, len(buffer)):
            piece = buffer[: min(len(buffer), offset + length - start)]
            reader.readinto(start, [piece])
            crc, whole = crc32c.crc32c(piece, crc), crc32c.crc32c(piece, whole)
            advance(len(piece))
        if crc != expected:
            bad.append(f"bytes {offset} to {offset + length} are not what was written")
    if not bad and whole != file.crc32c:
        bad.append("its checksum does not match")
    return bad


# Deleting


def decide_kept(rule: Retention, found: Iterable[CatalogEntry]) -> list[RetentionDecision]:
    """Decides which complete checkpoints are kept; incomplete ones are not counted, and stay.

    One that contains a foreign file is counted, and stays whatever the rule says.
    """
    whole = {one.which: one for one in found if one.status is CheckpointStatus.WHOLE}
    decisions = apply_retention(
        rule, [one.manifest for one in whole.values() if one.manifest is not None]
    )
    return [_keep_if_foreign(decision, whole[decision.which]) for decision in decisions]


def _keep_if_foreign(decision: RetentionDecision, found: CatalogEntry) -> RetentionDecision:
    if decision.keep or not found.foreign:
        return decision
    names = ", ".join(found.foreign[:3])
    return replace(decision, keep=True, why=f"contains files that are not ours ({names})")


def prune(
    storage: Storage, rule: Retention, term: int, damaged: AbstractSet[CheckpointId] = frozenset()
) -> None:
    """Deletes what the rule does not keep; for a job, after a commit.

    Args:
        storage: where.
        rule: what to keep.
        term: the term of the one who deletes.
        damaged: what is known to be damaged although its sizes are right: it does not count.

    Raises:
        CheckpointError: another process has a newer term, so that nothing was deleted; or something
            could not be deleted.
    """
    storage.check_term(term)
    found = [one for one in list_checkpoints(storage) if one.which not in damaged]
    delete_checkpoints(storage, decide_kept(rule, found), found)


def delete_checkpoints(
    storage: Storage, decisions: Iterable[RetentionDecision], found: Iterable[CatalogEntry]
) -> None:
    """Deletes the checkpoints that are not to be kept, and finishes earlier deletions.

    Args:
        storage: where.
        decisions: the decisions.
        found: what they were made about.

    Raises:
        CheckpointError: something could not be deleted.
    """
    manifests = {one.which: one.manifest for one in found}
    storage.finish_removals()
    for decision in decisions:
        if not decision.keep and (manifest := manifests.get(decision.which)):
            storage.remove(manifest)


def remove_unfinished(storage: Storage, term: int) -> list[CheckpointId]:
    """Removes what saves of older terms have left unfinished; for a job, once in its term.

    A save of an older term can never be committed, so none of it is under way in a way
    that counts: see ``Storage.check_term``.

    Args:
        storage: where.
        term: the term of the one who removes.

    Returns:
        Those that are gone; none if another process has a newer term.

    Raises:
        CheckpointError: the place cannot be read.
    """
    names = storage.names()
    older = [one for one in newest_first(names) if one.term < term]
    rests = [one for one in older if not storage.has_manifest(one)]
    return _clear(storage, term, names, rests)


def free_space(storage: Storage, term: int) -> list[CheckpointId]:
    """Removes files of starts of a job that all ended during their first save; before a save.

    None of these saves has cleaned up after another, and their files may be why the disk is full.
    The newest of them is kept: a process that was stopped in the moment of its commit may still
    finish it.

    Args:
        storage: where.
        term: the term of the one who removes.

    Returns:
        See ``remove_unfinished``.

    Raises:
        CheckpointError: the place cannot be read.
    """
    names = storage.names()
    older = [one for one in newest_first(names) if one.term < term - 1]
    # A save that was finished has cleared up all before it.
    rests = list(takewhile(lambda one: not storage.has_manifest(one), older))
    return _clear(storage, term, names, rests)


def _clear(
    storage: Storage, term: int, names: Sequence[str], rests: Sequence[CheckpointId]
) -> list[CheckpointId]:
    if not rests or highest_term(names) > term:
        return []
    doomed = abandoned((inspect_checkpoint(storage, one) for one in rests), names)
    for which in doomed:
        storage.discard(which)
    left = set(storage.names())
    return [which for which in doomed if which.name not in left]


def abandoned(found: Iterable[CatalogEntry], names: Iterable[str]) -> list[CheckpointId]:
    """Saves that never finished and cannot be under way any longer: those of older terms.

    Args:
        found: all checkpoints.
        names: all entries of the place.

    Returns:
        Those that hold nothing but files of ours.
    """
    highest = highest_term(names)
    return [
        one.which
        for one in found
        if one.status is CheckpointStatus.UNFINISHED
        and one.which.term < highest
        and not one.foreign
    ]
