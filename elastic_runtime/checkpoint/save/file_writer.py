"""Writes a file of a checkpoint and computes its checksums meanwhile."""

from __future__ import annotations

import base64
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import crc32c

from elastic_runtime.checkpoint.format.crc_combine import combined_crc
from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord, Part
from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.checkpoint.save.background_thread import failing_for_all
from elastic_runtime.checkpoint.save.staging import PartBytes
from elastic_runtime.system.machine import own_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elastic_runtime.checkpoint.format.description import DescriptionFile
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.worker.peers import Peers

# How many bytes are written to storage, and checksummed, at once. Not part of the format.
WRITE_SIZE = 4 << 20
_MOST_VIEWS = 512  # in a batch of ``WRITE_SIZE`` bytes
# So many batches the checksums may be behind: on a busy machine each wait for the other thread
# would cost a turn.
_LAG = 16


class _Sums:
    """The checksum of each part, as far as it has been seen."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def add(self, batch: list[tuple[int, memoryview]]) -> None:
        """Goes on with what is about to be written."""
        for part, view in batch:
            if part == len(self.found):
                self.found.append(0)
            self.found[part] = crc32c.crc32c(view, self.found[part])


def write_file(
    storage: Storage,
    which: CheckpointId,
    name: str,
    size: int,
    sources: Iterable[PartBytes],
    *,
    alone: bool,
    advance: Callable[[int], None] = lambda count: None,
) -> FileRecord:
    """Writes a file.

    Args:
        storage: where to.
        which: the checkpoint that it belongs to.
        name: of the file.
        size: of all sources together, in bytes.
        sources: its parts.
        alone: nothing else has to be done meanwhile: the checksums are computed in a thread
            beside the writing, if there is a core for it. Otherwise they take their turn.
        advance: called with the bytes that come next, some MiB at a time; raises if the file is
            not wanted any longer.

    Returns:
        What was written; it is durable.

    Raises:
        CheckpointError: it could not be written.
    """
    sums = _Sums()
    shapes: list[tuple[int, int]] = []
    due: deque[Callable[[], object]] = deque()
    beside_writing = alone and own_cores() > 1
    lag = _LAG if beside_writing else 0
    with _helper(beside_writing) as beside:
        with storage.writer(which, name, size) as out:
            for batch in _batches(sources, shapes):
                advance(sum(view.nbytes for _, view in batch))
                due.append(beside(lambda batch=batch: sums.add(batch)))  # type: ignore[misc]
                out.write([view for _, view in batch])
                while len(due) > lag:
                    due.popleft()()
        for wait in due:
            wait()
    parts = []
    offset = 0
    for (length, data), crc in zip(shapes, sums.found, strict=True):
        parts.append(Part(offset, length, crc, data))
        offset += length
    return FileRecord(name, offset, combined_crc(parts), tuple(parts))


def write_description_file(
    storage: Storage, which: CheckpointId, file: DescriptionFile
) -> FileRecord:
    """Writes a file that describes others.

    Raises:
        CheckpointError: it could not be written.
    """
    sources = [PartBytes((memoryview(piece),)) for piece in file.pieces]
    size = sum(map(len, file.pieces))
    return write_file(storage, which, file.name, size, sources, alone=False)


@contextmanager
def _helper(beside_writing: bool) -> Iterator[Callable[[Callable[[], None]], Callable[[], object]]]:
    """Gives a function that begins something and returns how to wait for it."""
    if not beside_writing:
        # While the interpreter ends, no thread can be started, and a save may still be under way.
        yield lambda work: work
        return
    with ThreadPoolExecutor(1, thread_name_prefix="elastic-checksum") as pool:
        yield lambda work: pool.submit(work).result


def _batches(
    sources: Iterable[PartBytes], shapes: list[tuple[int, int]]
) -> Iterator[list[tuple[int, memoryview]]]:
    """Pieces with the number of their part, some MiB at a time."""
    batch: list[tuple[int, memoryview]] = []
    left = WRITE_SIZE
    for number, source in enumerate(sources):
        shapes.append((source.size, source.data))
        for view in source.views:
            begin = 0
            while begin < view.nbytes:
                piece = view[begin : begin + left]
                batch.append((number, piece))
                begin += piece.nbytes
                left -= piece.nbytes
                if not left or len(batch) == _MOST_VIEWS:
                    yield batch
                    batch, left = [], WRITE_SIZE
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class Written:
    """What all ranks have written.

    Attributes:
        files: by rank, without their parts; None: nothing.
        records: the same with their parts, on rank 0; nothing on the others, which need none.
    """

    files: Sequence[FileRecord | None]
    records: Sequence[FileRecord | None]


def written_by_all(peers: Peers, write: Callable[[], FileRecord | None]) -> Written:
    """Has each rank write its file.

    Args:
        peers: all ranks, which do the same.
        write: writes that of this rank, if it has one.

    Raises:
        CheckpointError: a rank could not write; the same on every rank.
    """
    mine: FileRecord | None = None

    def do() -> dict[str, Any] | None:
        nonlocal mine
        mine = write()
        return replace(mine, parts=()).encode() if mine else None

    files = [one and FileRecord.decode(one) for one in peers.on_each(failing_for_all(do))]
    sections = peers.to_first(mine and section(mine)) or []
    return Written(files, [one and with_parts(one) for one in sections])


def section(file: FileRecord) -> dict[str, Any]:
    """A file with its parts, in few bytes: rank 0 gets thousands of them."""
    packed = base64.b64encode(PartColumns.of(file.parts).pack()).decode()
    return {**file.without_parts().encode(), "section": packed}


def with_parts(sent: dict[str, Any]) -> FileRecord:
    """Reads what ``section`` gave."""
    file = FileRecord.decode(sent)
    parts = PartColumns.unpack("what a rank has sent", base64.b64decode(sent["section"]), file)
    return FileRecord(file.name, file.bytes, file.crc32c, parts)
