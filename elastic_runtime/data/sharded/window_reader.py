"""Reads the windows of streams, in whatever process; keeps shards open where it has left them."""

from __future__ import annotations

import gzip
import os
import time
import traceback
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from elastic_runtime.data.sharded.lot_plan import Place, WindowFound
from elastic_runtime.data.sharded.shard_readers import reader_for
from elastic_runtime.errors import BrokenShard, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_runtime.data.sharded.shard_readers import ShardReader

_END: Any = object()
# Of shards that one process keeps open: the usual limit is 1,024 files for a process.
_MOST_OPEN = 256
_TRIES = 5
_LONGEST_WAIT_S = 4.0
_DOWN_S = 30.0
# What no second try will mend, of the errors that an operating system or a storage may give.
_FOR_GOOD = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    gzip.BadGzipFile,
)


class Run(NamedTuple):
    """Samples of a window that follow each other in a shard.

    Attributes:
        shard: its number.
        length: how many samples.
    """

    shard: int
    length: int


class Window(NamedTuple):
    """What a stream gives in a lot.

    Attributes:
        samples: as the readers give them.
        runs: from which shards they are.
        found: how many, and where the stream goes on.
    """

    samples: list[Any]
    runs: list[Run]
    found: WindowFound


def name_of(shard: object) -> str:
    """What a shard is called in messages and in checkpoints; "" if it has no name.

    Args:
        shard: a path, a URL, a number, or something else.
    """
    return str(shard) if isinstance(shard, str | os.PathLike | int) else ""


class WindowReader:
    """Reads windows of the shards that it was made for."""

    def __init__(self, shards: Sequence[Any], read: str | Callable[[Any], Iterable[Any]]) -> None:
        """Opens nothing yet.

        Args:
            shards: all there are.
            read: see ``reader_for``.
        """
        self._shards = shards
        self._read = read
        self._tries = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(_TRIES),
            wait=wait_random_exponential(multiplier=0.2, max=_LONGEST_WAIT_S),
            reraise=True,
        )
        self._down_until = 0.0
        # By shard: the mark that each was left at.
        self._open: OrderedDict[int, tuple[Any, ShardReader]] = OrderedDict()
        weakref.finalize(self, _close, self._open)

    def window(self, place: Place, size: int) -> Window:
        """Reads on from a place.

        Args:
            place: of a stream.
            size: how many samples are wanted.

        Raises:
            BrokenShard: a shard is not there, or not what it should be.
            OSError: a storage does not give it, in several tries.
        """
        if not size:
            return Window([], [], WindowFound(0, len(place.shards), place.mark))
        left = list(place.shards)
        samples: list[Any] = []
        runs: list[Run] = []
        mark, skip, wanted = place.mark, place.skip, size
        while left:
            some, skip, mark = self._part(left[0], mark, skip, wanted)
            samples += some
            wanted -= len(some)
            runs.append(Run(left[0], len(some)))
            if not wanted:
                break
            del left[0]
            mark = None
        return Window(samples, runs, WindowFound(len(samples), len(left), mark))

    def close(self) -> None:
        """Closes all shards; they are opened again if they are needed."""
        _close(self._open)

    def _part(self, shard: int, mark: Any, skip: int, wanted: int) -> tuple[list[Any], int, Any]:
        """Up to so many samples of a shard; how many are still to be skipped; the mark then."""
        try:
            try:
                part = self._try_part(shard, mark, skip, wanted)
                self._down_until = 0.0
                return part
            except OSError as error:
                if not _may_pass(error) or time.monotonic() < self._down_until:
                    raise
            try:
                return self._tries(self._try_part, shard, mark, skip, wanted)
            except OSError:
                # Many shards wait to be read: each of them in vain for as long would be minutes.
                self._down_until = time.monotonic() + _DOWN_S
                raise
        except (UsageError, OSError) as error:
            if isinstance(error, UsageError):
                raise
            if _may_pass(error):
                name = self._name(shard)
                text = f"the shard {name} is not to be had at present: {_what(error)}"
                raise OSError(text) from error
            raise self._broken(shard, error) from None
        except Exception as error:
            raise self._broken(shard, error) from error

    def _try_part(
        self, shard: int, mark: Any, skip: int, wanted: int
    ) -> tuple[list[Any], int, Any]:
        reader = self._taken(shard, mark)
        try:
            while skip and next(reader, _END) is not _END:
                skip -= 1
            samples: list[Any] = []
            while not skip and len(samples) < wanted:
                sample = next(reader, _END)
                if sample is _END:
                    break
                samples.append(sample)
            if len(samples) < wanted:
                reader.close()
                return samples, skip, None
            mark = reader.mark()
        except BaseException:
            reader.close()
            raise
        self._open[shard] = mark, reader
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1][1].close()
        return samples, 0, mark

    def _taken(self, shard: int, mark: Any) -> ShardReader:
        if shard in self._open:
            left_at, reader = self._open.pop(shard)
            if left_at == mark:
                return reader
            reader.close()
        return reader_for(self._read, self._shards[shard], mark)

    def _name(self, shard: int) -> str:
        return name_of(self._shards[shard]) or f"number {shard}"

    def _broken(self, shard: int, error: Exception) -> BrokenShard:
        what = _what(error)
        remedy = "see to the path" if isinstance(error, FileNotFoundError) else "mend it"
        if not isinstance(self._read, str):
            frames = traceback.extract_tb(error.__traceback__)
            what += f" (in {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
            remedy = remedy.replace("mend it", "mend it, or what read= makes of it,")
        return BrokenShard(
            f"the shard {self._name(shard)} cannot be read: {what}; {remedy} and start the job "
            "again, which then goes on from its last checkpoint"
        )


def _what(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".strip(": ").split())


def _close(readers: dict[int, tuple[Any, ShardReader]]) -> None:
    while readers:
        readers.popitem()[1][1].close()


def _may_pass(error: BaseException) -> bool:
    if not isinstance(error, OSError) or isinstance(error, _FOR_GOOD):
        return False
    # Without a number it is not from a system: so bz2 and pyarrow say that they cannot unpack it.
    return type(error) is not OSError or error.errno is not None
