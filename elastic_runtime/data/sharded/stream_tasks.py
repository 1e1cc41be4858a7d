"""What is done apart from training: windows are read, and samples made a batch.

Both are tasks of one ``DataLoader``, whose processes take them in turn. So the same processes read
what later steps need while they prepare the next ones, and a stream is read by the same process
each time, which has its shard open.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from elastic_runtime.data.sample_seeds import Moment, begin
from elastic_runtime.data.sharded.sample_blobs import (
    BlobGone,
    LoneSamples,
    SharedSamples,
    separate,
)
from elastic_runtime.data.sharded.window_reader import WindowReader, name_of
from elastic_runtime.data.sigterm_shield import Shielded, end_with_program
from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elastic_runtime.data.sharded.lot_plan import Place, WindowFound
    from elastic_runtime.data.sharded.sample_blobs import BlobName
    from elastic_runtime.data.sharded.window_reader import Run

# As torch's own, but half of the tasks only read.
_PREFETCH = 4


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Which window: it is the same wherever it is read."""

    epoch: int
    lot: int
    stream: int
    place: Place = field(hash=False)  # a mark may be a dict
    size: int


class ReadTask(NamedTuple):
    """Some windows, to be read by the process that has these streams.

    Attributes:
        windows: which.
        keep_from: earlier lots, by (epoch, number), are not needed any more.
    """

    windows: list[WindowKey]
    keep_from: tuple[int, int]


class BatchTask(NamedTuple):
    """Samples to be made a batch.

    Attributes:
        ticket: by which the batch will be known.
        moment: for ``sample_rng``.
        samples: themselves; or the name of a blob and the number in it of each.
        shards: where each is from.
        keep_from: earlier lots, by (epoch, number), are not needed any more.
    """

    ticket: int
    moment: Moment
    samples: list[Any]
    shards: list[int]
    keep_from: tuple[int, int]


class HeldWindow(NamedTuple):
    """A window that was read, here or in a process of the loader.

    Attributes:
        samples: themselves, if they are here.
        blob: otherwise, where they are.
        first: the number of the first sample in the blob.
        runs: from which shards they are.
        found: how many, and where the stream goes on.
    """

    samples: list[Any]
    blob: BlobName | None
    first: int
    runs: list[Run]
    found: WindowFound

    def sample(self, number: int) -> Any:
        """What a ``BatchTask`` has for a sample.

        Args:
            number: of the sample in the window.
        """
        return self.samples[number] if self.blob is None else (self.blob, self.first + number)

    def shard_of(self, number: int) -> int:
        """The shard that a sample is from.

        Args:
            number: of the sample in the window.
        """
        for shard, length in self.runs:
            if number < length:
                return shard
            number -= length
        raise IndexError(number)


class ReadFailure(NamedTuple):
    """Why a window could not be read.

    Attributes:
        text: for the user.
        final: no other try will do better.
    """

    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a ``ReadTask`` has given; no tuple, as ``pin_memory`` would take that apart.

    Attributes:
        windows: each by its key.
    """

    windows: list[tuple[WindowKey, HeldWindow | ReadFailure]]


class ShardWork(Dataset[Any]):  # type: ignore[misc]  # torch has no types
    """Does tasks, in whatever process."""

    def __init__(
        self,
        shards: Sequence[Any],
        read: str | Callable[[Any], Iterable[Any]],
        decode: Callable[[Any], Any] | None,
        collate: Callable[[list[Any]], Any] | None,
    ) -> None:
        """Opens nothing yet.

        Args:
            shards: all there are.
            read: see ``reader_for``.
            decode: makes a sample of what is read; None: it is one.
            collate: makes a batch of samples; None: as torch does.
        """
        self._reader = WindowReader(shards, read)
        self._names = [name_of(shard) for shard in shards]
        self._decode = decode
        self._collate = collate or default_collate
        # Whether something of the user's is given samples, which it may change.
        self._gives_away = decode is not None or collate is not None
        # In a process of a loader: what was read and is not used yet.
        self._kept: LoneSamples | SharedSamples | None = None

    def __getitem__(self, task: ReadTask | BatchTask | None) -> Any:
        if self._kept is None and (process := get_worker_info()) is not None:
            self._kept = LoneSamples() if process.num_workers == 1 else SharedSamples()
        if task is None:
            return None
        if self._kept is not None:
            self._kept.drop_before(task.keep_from)
        if isinstance(task, BatchTask):
            return task.ticket, self._batch(task)
        with torch_private.hidden_loader_process():
            found = self._windows(task)
        return ReadResult(found if self._kept is None else _kept_apart(found, self._kept))

    def _windows(self, task: ReadTask) -> list[tuple[WindowKey, HeldWindow | ReadFailure]]:
        found: list[tuple[WindowKey, HeldWindow | ReadFailure]] = []
        for key in task.windows:
            try:
                window = self._reader.window(key.place, key.size)
            except UsageError as error:
                found.append((key, ReadFailure(str(error), final=True)))
            except OSError as error:
                found.append((key, ReadFailure(str(error), final=False)))
            else:
                found.append((key, HeldWindow(window.samples, None, 0, window.runs, window.found)))
        return found

    def _batch(self, task: BatchTask) -> Any:
        begin(task.moment)
        decoded = []
        for given, shard in zip(task.samples, task.shards, strict=True):
            try:
                sample = self._taken(given)
            except BlobGone:
                return ReadFailure("the samples of this step are not kept any more", final=False)
            try:
                decoded.append(self._decode(sample) if self._decode else sample)
            except ValueError as error:  # which those of JSON and of encodings are
                what = f"{type(error).__name__}: {error}: {self._taken(given)!r:.100}"
                text = f"a sample of the shard {self._name(shard)} cannot be decoded: {what}"
                return ReadFailure(text, final=True)
            except Exception as error:  # perhaps a mistake in decode=: its traceback is needed
                before = self._taken(given)  # which decode= has changed, perhaps
                error.add_note(f"in a sample of the shard {self._name(shard)}: {before!r:.100}")
                raise
        return self._collate(decoded)

    def _taken(self, given: Any) -> Any:
        if self._kept is not None:
            return self._kept.sample(*given)
        return separate(given) if self._gives_away else given

    def _name(self, shard: int) -> str:
        return self._names[shard] or f"number {shard}"


def _kept_apart(
    found: list[tuple[WindowKey, HeldWindow | ReadFailure]], kept_here: LoneSamples | SharedSamples
) -> list[tuple[WindowKey, HeldWindow | ReadFailure]]:
    """The same with all samples kept in this process, under one name."""
    samples = [s for _, window in found if isinstance(window, HeldWindow) for s in window.samples]
    if not samples:
        return found
    try:
        blob = kept_here.keep(samples, (found[0][0].epoch, found[0][0].lot))
    except MemoryError:
        raise
    except Exception as error:  # pickle has several of its own, and passes on those of samples
        if getattr(error, "errno", None) is not None:
            raise  # there is no room for it
        what = f"{type(error).__name__}: {error}"
        text = (
            f"what read= gives cannot be passed from one loader process to another ({what}): give "
            "plain values, and make of them in decode= what a batch needs, or take num_workers=1"
        )
        failed = ReadFailure(text, final=True)
        return [(key, failed if isinstance(one, HeldWindow) else one) for key, one in found]
    kept: list[tuple[WindowKey, HeldWindow | ReadFailure]] = []
    first = 0
    for key, window in found:
        if isinstance(window, HeldWindow):
            kept.append((key, window._replace(samples=[], blob=blob, first=first)))
            first += len(window.samples)
        else:
            kept.append((key, window))
    return kept


class TaskQueue:
    """Which task comes next: the next batches, and between them what later ones need."""

    def __init__(self, processes: int) -> None:
        """Has nothing to do yet.

        Args:
            processes: how many take tasks, in turn.
        """
        self._processes = max(1, processes)
        self._reads: list[deque[ReadTask]] = [deque() for _ in range(self._processes)]
        self._batches: deque[Callable[[tuple[int, int]], BatchTask]] = deque()
        # Of each process: reads for each batch that it makes, and reads that are due.
        self._pace = [0.0] * self._processes
        self._due = [0.0] * self._processes
        self._turn = 0
        self.only_reads = False
        self.keep_from = (0, 0)  # earlier lots are committed

    def begin_turns(self) -> None:
        """The first process is the next to take a task."""
        self._turn = 0

    def clear(self) -> None:
        """Forgets all tasks."""
        for reads in self._reads:
            reads.clear()
        self._batches.clear()

    def read(self, windows: Sequence[WindowKey], batches: int) -> None:
        """Adds windows to be read while so many batches are made.

        Args:
            windows: which.
            batches: 0: at once.
        """
        for number, reads in enumerate(self._reads):
            own = [key for key in windows if key.stream % self._processes == number]
            at_once = max(1, -(-len(own) * self._processes // max(1, batches)))
            starts = range(0, len(own), at_once)
            reads.extend(ReadTask(own[n : n + at_once], self.keep_from) for n in starts)
            self._pace[number] = len(reads) * self._processes / max(1, batches)

    def batch(self, task: Callable[[tuple[int, int]], BatchTask]) -> None:
        """Adds samples that become a batch.

        Args:
            task: gives them, when it is their turn, to what is kept then. It must not refer to what
                has this queue: processes of a loader in a circle of references end late.
        """
        self._batches.append(task)

    def __iter__(self) -> Iterator[ReadTask | BatchTask | None]:
        return self

    def __next__(self) -> ReadTask | BatchTask | None:
        turn, self._turn = self._turn, (self._turn + 1) % self._processes
        reads = self._reads[turn]
        if reads and (self.only_reads or self._due[turn] >= 1 or not self._batches):
            self._due[turn] = max(0.0, self._due[turn] - 1)
            return reads.popleft()
        if self._batches and not self.only_reads:
            self._due[turn] = self._due[turn] + self._pace[turn] if reads else 0.0
            return self._batches.popleft()(self.keep_from)
        return None


class TaskLoader:
    """A ``DataLoader`` over tasks, that is never at its end."""

    def __init__(self, work: ShardWork, options: dict[str, Any]) -> None:
        """Starts nothing yet.

        Args:
            work: does them.
            options: of ``DataLoader``.
        """
        processes = options.get("num_workers", 0)
        self.queue = TaskQueue(processes)
        if processes:
            options = {"prefetch_factor": _PREFETCH, **options}
            options["worker_init_fn"] = Shielded(options.get("worker_init_fn"))
        self._loader: DataLoader[Any] = DataLoader(
            work,
            batch_size=None,
            sampler=self.queue,
            collate_fn=_as_it_is,
            persistent_workers=processes > 0,
            **options,
        )
        self._processes = processes
        if processes:
            end_with_program(self._loader)
        self._iterator: Iterator[Any] | None = None

    def drop(self) -> None:
        """What is under way is not wanted, and an interrupted ``result`` is no matter."""
        self.queue.clear()
        self._iterator = None

    def result(self) -> Any:
        """What the next task has given: windows, a batch with its ticket, or None."""
        if self._iterator is None:
            self.queue.begin_turns()
            self._iterator = iter(self._loader)
        return next(self._iterator)


def _as_it_is(given: Any) -> Any:
    return given
