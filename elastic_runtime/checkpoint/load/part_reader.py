"""Reading parts of a checkpoint into memory, each verified with its checksum.

The bytes of a tensor go straight to where they are wanted, wherever they form one run of memory
there; what lies around them (the rest of the part) passes through a small buffer. So a checksum
covers exactly what was read and used, and is computed while the bytes are still in the cache.
Parts are spread over a few threads: reading and checksumming leave Python's lock to others.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import crc32c
import torch

from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.parts.tensor_memory import bytes_of
from elastic_runtime.system.machine import own_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_runtime.checkpoint.format.chunks import Chunk
    from elastic_runtime.checkpoint.format.manifest import CheckpointId, Part
    from elastic_runtime.checkpoint.format.stored_items import Piece, StoredValue
    from elastic_runtime.checkpoint.storage.storage_contract import Reader, Source

# What one thread takes at a time, unless a single part is larger.
_STRETCH = 16 << 20
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Destination:
    """Memory for a run of bytes of a part.

    Attributes:
        start: of the run, in bytes from the beginning of the part.
        tensor: contiguous, on the CPU; as long as the run.
    """

    start: int
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Fetch:
    """One part to be read.

    Attributes:
        file: its name.
        part: which part of it.
        destination: makes the memory for what is wanted of it, when it is read; the rest is only
            verified.
        deliver: gets the memory, filled and verified.
    """

    file: str
    part: Part
    destination: Callable[[], Destination | None]
    deliver: Callable[[torch.Tensor], None] = field(default=lambda _: None)


# What to read


@dataclass(frozen=True, slots=True)
class TensorTarget:
    """Where the elements of a chunk of a tensor go.

    Attributes:
        chunk: within the whole tensor.
        tensor: of the sizes of the chunk, with any strides, on any device.
    """

    chunk: Chunk
    tensor: torch.Tensor


def fetch_value(stored: StoredValue, take: Callable[[memoryview], None]) -> Fetch:
    """Reads a value.

    Args:
        stored: where it is.
        take: gets its bytes, verified.
    """

    def aside() -> Destination:
        return Destination(0, torch.empty(stored.part.length, dtype=torch.uint8, device="cpu"))

    return Fetch(stored.file, stored.part, aside, lambda read: take(bytes_of(read)))


def fetch_tensor(piece: Piece, dtype: torch.dtype, targets: Sequence[TensorTarget]) -> Fetch | None:
    """Reads what some targets need of one piece of a tensor.

    Args:
        piece: what is stored.
        dtype: as it is stored.
        targets: of the same tensor, in the memory of this rank.

    Returns:
        None if the piece holds nothing that is wanted. A piece without elements is read for its
        checksum.
    """
    if not piece.chunk.count:
        return Fetch(piece.file, piece.part, lambda: None)
    wanted = [
        (overlap, target) for target in targets if (overlap := piece.chunk.overlap(target.chunk))
    ]
    if not wanted:
        return None
    if len(wanted) == 1 and (direct := _direct(piece, dtype, *wanted[0])):
        return Fetch(piece.file, piece.part, lambda: direct)

    def aside() -> Destination:
        return Destination(
            piece.part.data, torch.empty(piece.chunk.sizes, dtype=dtype, device="cpu")
        )

    def copy(read: torch.Tensor) -> None:
        for overlap, target in wanted:
            _pick(target.tensor, target.chunk, overlap).copy_(_pick(read, piece.chunk, overlap))

    return Fetch(piece.file, piece.part, aside, copy)


def _pick(tensor: torch.Tensor, chunk: Chunk, inner: Chunk) -> torch.Tensor:
    return tensor[chunk.index(inner)] if inner.sizes else tensor


def _direct(
    piece: Piece, dtype: torch.dtype, overlap: Chunk, target: TensorTarget
) -> Destination | None:
    """The target's own memory, if what it needs is one run of bytes both there and in the part."""
    memory = _pick(target.tensor, target.chunk, overlap)
    first = piece.chunk.run(overlap)
    plain = (
        memory.device.type == "cpu"
        and memory.dtype == dtype
        and memory.is_contiguous()
        and not (memory.is_conj() or memory.is_neg())
    )
    if first is None or not plain:
        return None
    return Destination(piece.part.data + first * dtype.itemsize, memory)


# Reading it


def read(
    storage: Source,
    which: CheckpointId,
    fetches: Sequence[Fetch],
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Reads all parts that were asked for, and verifies them.

    What is delivered to memory before damage is found stays there.

    Args:
        storage, which: the checkpoint.
        fetches: in any order; each part at most once.
        advance: called by any thread with the number of bytes that were read.

    Raises:
        DamagedCheckpoint: a file is not what was written; names the file.
    """
    stretches = list(_stretches(fetches))
    threads = min(_THREADS, own_cores(), len(stretches))
    stop = threading.Event()

    def one(stretch: Sequence[Fetch]) -> None:
        if stop.is_set():
            return
        try:
            with storage.reader(which, stretch[0].file) as reader:
                place = storage.place(which, stretch[0].file)
                _Stretch(reader, place, storage.read_size, advance, stop).read(stretch)
        except BaseException:
            stop.set()
            raise

    if threads <= 1:
        for stretch in stretches:
            one(stretch)
        return
    with ThreadPoolExecutor(threads, "checkpoint-read") as pool:
        for done in [pool.submit(one, stretch) for stretch in stretches]:
            done.result()


def _stretches(fetches: Sequence[Fetch]) -> Iterator[list[Fetch]]:
    """Cuts what is to be read into stretches of adjacent parts, the largest parts first."""
    stretches: list[list[Fetch]] = []
    size = 0
    for fetch in sorted(fetches, key=lambda fetch: (fetch.file, fetch.part.offset)):
        last = stretches[-1][-1] if stretches else None
        adjacent = (
            last is not None
            and last.file == fetch.file
            and last.part.offset + last.part.length == fetch.part.offset
        )
        if adjacent and size + fetch.part.length <= _STRETCH:
            stretches[-1].append(fetch)
            size += fetch.part.length
        else:
            stretches.append([fetch])
            size = fetch.part.length
    yield from sorted(stretches, key=lambda parts: -sum(each.part.length for each in parts))


@dataclass(slots=True)
class _Work:
    """A part while it is read: the memory for it, the bytes to come, the checksum so far."""

    fetch: Fetch
    destination: Destination | None
    left: int
    crc: int = 0


class _Stretch:
    """Reads adjacent parts, a batch of bytes at a time, however large or small they are."""

    def __init__(
        self,
        reader: Reader,
        place: str,
        read_size: int,
        advance: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        self._reader = reader
        self._place = place
        self._read_size = read_size
        self._advance = advance
        self._stop = stop
        self._aside = memoryview(b"")

    def read(self, fetches: Sequence[Fetch]) -> None:
        offset = fetches[0].part.offset
        length = sum(fetch.part.length for fetch in fetches)
        self._aside = memoryview(bytearray(min(self._read_size, length)))
        self._reader.expect(offset, length)
        for batch in self._batches(fetches):
            if self._stop.is_set():
                return
            buffers = [buffer for _, buffer in batch]
            self._reader.readinto(offset, buffers)
            for work, buffer in batch:
                self._take(work, buffer)
            size = sum(map(len, buffers))
            offset += size
            self._advance(size)

    def _batches(self, fetches: Sequence[Fetch]) -> Iterator[list[tuple[_Work, memoryview]]]:
        batch: list[tuple[_Work, memoryview]] = []
        size = 0
        for fetch in fetches:
            work = _Work(fetch, fetch.destination(), fetch.part.length)
            for memory, length in _runs(work):
                done = 0
                while done < length:
                    count = min(length - done, self._read_size - size)
                    if memory is None:  # the buffer is as long as a batch, so it is never short
                        batch.append((work, self._aside[size : size + count]))
                    else:
                        batch.append((work, memory[done : done + count]))
                    done += count
                    size += count
                    if size == self._read_size:
                        yield batch
                        batch, size = [], 0
        if batch:
            yield batch

    def _take(self, work: _Work, buffer: memoryview) -> None:
        work.crc = crc32c.crc32c(buffer, work.crc)
        work.left -= len(buffer)
        if work.left:
            return
        if work.crc != work.fetch.part.crc32c:
            raise DamagedCheckpoint(f"{self._place} is damaged: its checksum does not match")
        if work.destination is not None:
            work.fetch.deliver(work.destination.tensor)


def _runs(work: _Work) -> Iterator[tuple[memoryview | None, int]]:
    """Memory for the bytes of a part, in order; None where they are only verified."""
    length = work.fetch.part.length
    if work.destination is None:
        yield None, length
        return
    memory = bytes_of(work.destination.tensor)
    yield None, work.destination.start
    yield memory, len(memory)
    yield None, length - work.destination.start - len(memory)
