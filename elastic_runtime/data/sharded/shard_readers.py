"""Readers of one shard: its samples one after the other, from a mark on.

A mark is plain JSON. A reader that is opened at a mark gives what the one that has made the mark
would have given next.
"""

from __future__ import annotations

import importlib
import json
import os
import tarfile
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Protocol, cast, runtime_checkable

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@runtime_checkable
class Stateful(Protocol):
    """What can say where it is, and go on from there."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there."""


class ShardReader(Protocol):
    """An iterator over the samples of a shard."""

    def __iter__(self) -> Iterator[Any]:
        """Itself."""

    def __next__(self) -> Any:
        """The next sample."""

    def mark(self) -> Any:
        """Where it is: before the sample that comes next."""

    def close(self) -> None:
        """Frees what it holds; it is not used any more."""


class JsonLinesReader:
    """A sample for each line, as it is; empty lines are none. Its mark is an offset in bytes."""

    def __init__(self, shard: Any, mark: int | None = None) -> None:
        """Opens a file, compressed if its name ends so.

        Args:
            shard: a path, or a URL that fsspec knows.
            mark: where to begin.
        """
        self._file = opened(shard)
        self._offset = mark or 0
        self._file.seek(self._offset)

    def __iter__(self) -> JsonLinesReader:
        return self

    def __next__(self) -> bytes:
        while line := self._file.readline():
            if not line.endswith(b"\n"):
                # The last one, unless what is compressed was cut here: then this says so.
                line += self._file.readline()
            self._offset += len(line)
            if not line.isspace():
                return line
        raise StopIteration

    def mark(self) -> int:
        """The offset of the next line."""
        return self._offset

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TarReader:
    """A sample for each name, as WebDataset has them: ``a.jpg`` and ``a.cls`` make one sample.

    It is a dict with ``__key__`` and the bytes of each file by its extension, which begins at the
    first dot of the file's name. Files of a sample follow each other. The mark is an offset in
    bytes.
    """

    def __init__(self, shard: Any, mark: int | None = None) -> None:
        """Opens an archive, compressed if its name ends so.

        Args:
            shard: a path, or a URL that fsspec knows.
            mark: where to begin.
        """
        self._file = opened(shard)
        try:
            self._file.seek(mark or 0)
            self._archive = tarfile.open(fileobj=self._file, mode="r:")
            self._ahead = self._next_file()
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> TarReader:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._ahead is None:
            raise StopIteration
        key, _ = named = _key_of(self._ahead.name)
        sample: dict[str, Any] = {"__key__": key}
        while self._ahead is not None and named[0] == key:
            content = cast("BinaryIO", self._archive.extractfile(self._ahead)).read()
            if len(content) < self._ahead.size:
                raise tarfile.ReadError("unexpected end of data")
            sample[named[1]] = content
            self._ahead = self._next_file()
            if self._ahead is not None:
                named = _key_of(self._ahead.name)
        return sample

    def mark(self) -> int:
        """The offset of the first file of the next sample."""
        return self._archive.offset if self._ahead is None else self._ahead.offset

    def close(self) -> None:
        """Closes the archive."""
        self._file.close()

    def _next_file(self) -> tarfile.TarInfo | None:
        while (member := self._archive.next()) is not None:
            cast("Any", self._archive).members.clear()  # it would remember all of them
            base = member.name.rsplit("/", 1)[-1]
            if member.isreg() and not base.startswith(".") and "." in base:
                return member
        # The library takes whatever it does not understand for the end.
        self._file.seek(self._archive.offset)
        if (end := self._file.read(tarfile.BLOCKSIZE)).strip(b"\0") or not end:
            raise tarfile.ReadError(
                f"no file and no end of the archive at offset {self._archive.offset}"
            )
        return None


def _key_of(name: str) -> tuple[str, str]:
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


class ParquetReader:
    """A sample for each row, as a dict by column. Its mark is the number of the row."""

    _AT_ONCE = 64  # rows that are made into dicts together

    def __init__(self, shard: Any, mark: int | None = None) -> None:
        """Opens a file.

        Args:
            shard: a path, or a URL that fsspec knows.
            mark: the row to begin with.

        Raises:
            UsageError: pyarrow is not installed.
        """
        try:
            import pyarrow.parquet as parquet  # an extra
        except ImportError:
            raise UsageError("shards in Parquet need pyarrow: pip install pyarrow") from None
        self._file = opened(shard)
        try:
            self._table = parquet.ParquetFile(self._file)
        except BaseException:
            self._file.close()
            raise
        self._row = mark or 0
        self._rows = self._read(self._row)

    def __iter__(self) -> ParquetReader:
        return self

    def __next__(self) -> dict[str, Any]:
        row = next(self._rows)
        self._row += 1
        return row

    def mark(self) -> int:
        """The number of the next row."""
        return self._row

    def close(self) -> None:
        """Closes the file."""
        self._rows = iter(())
        self._table.close()
        self._file.close()

    def _read(self, first: int) -> Iterator[dict[str, Any]]:
        start = 0
        for group in range(self._table.num_row_groups):
            rows = self._table.metadata.row_group(group).num_rows
            if start + rows > first:
                skip = max(0, first - start)
                for batch in self._table.iter_batches(self._AT_ONCE, row_groups=[group]):
                    if skip < len(batch):
                        yield from batch.slice(skip).to_pylist()
                    skip = max(0, skip - len(batch))
            start += rows


class IterableReader:
    """What an iterable gives; its mark is its own state if it has one, else how much it has given.

    Without a state, what came before a mark is read again and dropped.
    """

    def __init__(self, samples: Iterable[Any], mark: Any = None) -> None:
        """Begins to iterate.

        Args:
            samples: gives the same each time.
            mark: where to go on.
        """
        self._state = samples if isinstance(samples, Stateful) else None
        self._begin = mark if self._state is not None else None
        self._given = 0
        if self._state is not None and mark is not None:
            self._state.load_state_dict(mark)
        self._samples = iter(samples)
        if self._state is None and mark:
            self._given = sum(1 for _ in islice(self._samples, mark))

    def __iter__(self) -> IterableReader:
        return self

    def __next__(self) -> Any:
        sample = next(self._samples)
        self._given += 1
        return sample

    def mark(self) -> Any:
        """Its state, or the number of samples that it has given.

        Raises:
            UsageError: the state is no plain JSON.
        """
        if self._state is None:
            return self._given
        if not self._given:  # some have no state before their first sample
            return self._begin
        state = self._state.state_dict()
        try:
            text = json.dumps(state, default=_refuse)
        except TypeError:  # of keys
            _refuse(state)
        if (as_json := json.loads(text)) != _without_tuples(state):
            _refuse(state)
        return as_json

    def close(self) -> None:
        """Closes a generator."""
        close = getattr(self._samples, "close", None)
        if close is not None:
            close()


def _refuse(value: Any) -> NoReturn:
    raise UsageError(
        "the state_dict() of the samples holds more than numbers, texts, lists and dicts by text, "
        f"so that it cannot be saved as their position: {value!r:.200}"
    )


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tuples(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tuples(each) for each in value]
    return value


def opened(shard: Any) -> BinaryIO:
    """A shard as a file that can be read and searched.

    Args:
        shard: a path, or a URL that fsspec knows. What is compressed is unpacked: ``.gz``, ``.bz2``
            and ``.xz``.
    """
    name = os.fspath(shard) if isinstance(shard, str | os.PathLike) else str(shard)
    # What follows the name in a URL may be a signature.
    packed = _PACKED.get(PurePath(name.partition("?")[0] if "://" in name else name).suffix)
    if "://" in name:
        import fsspec  # torch needs it as well, but it takes a while

        return cast("BinaryIO", fsspec.open(name, "rb", compression=packed).open())
    if packed is None:
        return open(name, "rb")
    if not os.path.getsize(name):
        raise EOFError("the file is empty")
    return cast("BinaryIO", importlib.import_module(packed).open(name))


# The names of fsspec's, and of the modules of Python's.
_PACKED = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".xz": "lzma"}


_FORMATS: dict[str, Callable[[Any, Any], ShardReader]] = {
    "jsonl": JsonLinesReader,
    "parquet": ParquetReader,
    "tar": TarReader,
}
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tar": "tar",
    ".tgz": "tar",
}


def format_of(shard: Any) -> str:
    """How a shard is read, by the end of its name.

    Args:
        shard: a path or a URL.

    Raises:
        UsageError: the name does not tell, or it is none.
    """
    if not isinstance(shard, str | os.PathLike):
        raise UsageError(
            f"the shard {shard!r:.40} is no path: give read= a function that gives "
            "the samples of one; a data set that has samples by number, such as a Dataset of "
            "Hugging Face, belongs in elastic.DataLoader"
        )
    path = PurePath(str(shard).partition("?")[0])
    suffix = path.suffix
    if suffix in (".gz", ".bz2", ".xz"):
        suffix = PurePath(path.stem).suffix
    if suffix not in _BY_SUFFIX:
        raise UsageError(
            f"the name of the shard {str(shard)!r} does not tell how it is to be read; give "
            f"read= one of {', '.join(map(repr, _FORMATS))}, or a function that gives the samples "
            "of a shard"
        )
    return _BY_SUFFIX[suffix]


def reader_for(read: str | Callable[[Any], Iterable[Any]], shard: Any, mark: Any) -> ShardReader:
    """Opens a shard.

    Args:
        read: the name of a format; or gives what is to be iterated over for a shard.
        shard: which.
        mark: where; None: at its beginning.
    """
    if isinstance(read, str):
        return _FORMATS[read](shard, mark)
    return IterableReader(read(shard), mark)


def check_format(read: object) -> None:
    """Refuses what is neither a format nor a function.

    Args:
        read: what the user has given.

    Raises:
        UsageError: it is something else.
    """
    if not (callable(read) or read in _FORMATS):
        raise UsageError(
            f"read={read!r} is not known; give one of {', '.join(map(repr, _FORMATS))}, or a "
            "function that gives the samples of a shard"
        )
