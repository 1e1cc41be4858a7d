"""Checkpoints in anything that fsspec knows by a URL: object stores above all.

An object appears whole or not at all, and there is no rename. So the manifest is simply the last
object of a save and the first that a deletion takes away. A term is a conditional put where the
store has one (S3, Google, Azure). Elsewhere it is written and then read back at every use: of two
who wrote at the same moment, one finds the other's and stops.

Credentials come from where the library of the store looks for them, and stay there: whatever a
library says is shown without them. fsspec is imported when the first URL is opened.
"""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import tenacity

from elastic_runtime.checkpoint.format import manifest as layout
from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.storage.credentials import (
    secrets_around,
    secrets_of,
    without_credentials,
)
from elastic_runtime.checkpoint.storage.first_contact import (
    FirstContactTimeout,
    Patience,
    ask_storage,
)
from elastic_runtime.checkpoint.storage.storage_contract import PROBE_FILE, Storage
from elastic_runtime.errors import (
    CheckpointFailed,
    CheckpointUsageError,
    DamagedCheckpoint,
    ElasticError,
)
from elastic_runtime.events.checkpoint_events import CheckpointUnreachable
from elastic_runtime.limits import OBJECT_STORE_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fsspec import AbstractFileSystem

_MIB = 1 << 20
_PART = 16 * _MIB  # of an upload: this much memory is needed in addition to the state
_MOST_PARTS = 8000  # S3 takes 10,000
_RANGE = 8 * _MIB  # of a download
_READERS = 8
_WAIT = tenacity.wait_random_exponential(multiplier=0.2, max=5.0)
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError, ImportError)

_T = TypeVar("_T")


class RemoteStorage(Storage):
    """A URL such as ``s3://bucket/run``."""

    read_size = _READERS * _RANGE

    def __init__(self, url: str, first: Patience | None = None) -> None:
        """Finds the library for the URL; nothing is asked of the store yet.

        Args:
            url: of the place that holds all checkpoints of the job.
            first: how long the store has for its first answer; None: as for any other.

        Raises:
            CheckpointError: the library is not installed, or the URL is not understood.
        """
        self.where = without_credentials(url)
        self._secrets = secrets_of(url)
        self._fs, self._root = self._opened(url)
        self.shared = not url.startswith("memory:")
        self._first = first
        self._claims: dict[str, bytes] = {}  # what this process has written into files of terms
        self._pool: ThreadPoolExecutor | None = None

    def _opened(self, url: str) -> tuple[AbstractFileSystem, str]:
        try:
            from fsspec.core import url_to_fs

            with self._explained(f"open {self.where}"):
                fs, root = url_to_fs(url)
        except ImportError as error:
            raise CheckpointUsageError(
                f"cannot open {self.where}: {error}; pip install 'elastic-runtime[storage]' brings "
                "fsspec and what S3 needs, other stores need the package of theirs"
            ) from None
        except CheckpointFailed as error:  # no store was asked yet: it is the URL
            raise CheckpointUsageError(str(error)) from None
        return fs, root.rstrip("/")

    def prepare(self) -> None:
        probe = f"{self._root}/{PROBE_FILE}"
        with self._explained(f"save checkpoints in {self.where}"):
            self._make_directory(self._root)
            self._try(lambda: self._fs.pipe_file(probe, b""))
            self._delete(probe)

    def _make_directory(self, path: str) -> None:
        """For stores with real directories; the others do nothing here."""
        if "/" not in path:
            return  # a bucket: the user must make it
        try:
            self._try(lambda: self._fs.mkdir(path, create_parents=False))
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_directory(path.rpartition("/")[0])
            self._try(lambda: self._fs.mkdir(path, create_parents=False))

    def names(self) -> list[str]:
        with self._explained(f"read {self.where}"):
            return [_name(found) for found in self._list(self._root)]

    def missing(self) -> str:
        bucket, _, _ = self._root.partition("/")  # "" where a store has real directories
        with self._explained(f"read {self.where}"):
            there = not bucket or self._try(lambda: self._fs.exists(bucket))
        return "" if there else f"bucket {bucket!r} ({self.where})"

    # Terms

    def check_term(self, term: int) -> None:
        super().check_term(term)
        claim = self._claims.get(layout.term_name(term))
        if claim is not None:
            found = self._read_entry(layout.term_name(term))
            if found not in (claim, b""):
                raise self._taken(term, "taken by another process at the same moment")

    def _create_exclusively(self, name: str, content: bytes) -> bool:
        path = f"{self._root}/{name}"
        with self._explained(f"take a term in {self.where}"):
            try:
                self._try(lambda: self._fs.pipe_file(path, content, mode="create"))
            except FileExistsError:
                # It may be ours: an answer can get lost, and then the put is tried again.
                pass
            if self._optional(path) != content:
                return False
        self._claims[name] = content
        return True

    def _read_entry(self, name: str) -> bytes:
        with self._explained(f"read {self.where}/{name}"):
            return self._optional(f"{self._root}/{name}") or b""

    def _forget(self, name: str) -> None:
        with suppress(CheckpointFailed), self._explained(f"delete {self.where}/{name}"):
            self._delete(f"{self._root}/{name}")

    # A save

    def create(self, which: CheckpointId) -> bool:
        with self._explained(f"save to {self.place(which)}"):
            try:
                if self._list(self._path(which)):
                    return False
                self._try(lambda: self._fs.mkdir(self._path(which), create_parents=False))
            except FileExistsError:
                return False
        return True

    @contextmanager
    def writer(self, which: CheckpointId, name: str, size: int) -> Iterator[RemoteWriter]:
        part = max(_PART, -(-size // _MOST_PARTS // _MIB) * _MIB)
        doing = f"save to {self.place(which, name)}"
        with self._explained(doing):
            file = self._fs.open(self._path(which, name), "wb", block_size=part)
        try:
            yield RemoteWriter(file, lambda: self._explained(doing))
            with self._explained(doing):
                file.close()
        except BaseException:
            _abandon(file)
            raise

    def _publish(self, which: CheckpointId, content: bytes) -> None:
        with self._explained(f"save to {self.place(which)}"):
            self._try(lambda: self._fs.pipe_file(self._path(which, layout.MANIFEST), content))

    def discard(self, which: CheckpointId) -> None:
        with suppress(CheckpointFailed), self._explained(f"delete {self.place(which)}"):
            # The manifest goes first: without it nothing of this counts.
            self._delete(self._path(which, layout.MANIFEST))
            for found in self._list(self._path(which)):
                self._delete(found["name"])
            self._remove_directory(self._path(which))

    # A load

    def has_manifest(self, which: CheckpointId) -> bool:
        with self._explained(f"read {self.place(which)}"):
            return self._size(self._path(which, layout.MANIFEST)) is not None

    def _manifest_bytes(self, which: CheckpointId) -> bytes | None:
        with self._explained(f"read {self.place(which, layout.MANIFEST)}"):
            return self._optional(self._path(which, layout.MANIFEST))

    def read_bytes(self, which: CheckpointId, name: str) -> bytes:
        where = self.place(which, name)
        with self._explained(f"read {where}"):
            data = self._optional(self._path(which, name))
        if data is None:
            raise DamagedCheckpoint(f"{where} cannot be read: it is not there")
        return data

    @contextmanager
    def reader(self, which: CheckpointId, name: str) -> Iterator[RemoteReader]:
        where, path = self.place(which, name), self._path(which, name)
        with self._explained(f"read {where}"):
            size = self._size(path)
        if size is None:
            raise DamagedCheckpoint(f"{where} cannot be read: it is not there")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_READERS, "elastic-download")

        def fetch(start: int, end: int) -> bytes:
            with self._explained(f"read {where}"):
                return bytes(self._try(lambda: self._fs.cat_file(path, start=start, end=end)))

        yield RemoteReader(where, size, fetch, self._pool)

    # Retention

    def sizes(self, which: CheckpointId) -> dict[str, int]:
        with self._explained(f"read {self.place(which)}"):
            found = {_name(one): int(one["size"] or 0) for one in self._list(self._path(which))}
        found.pop(layout.MANIFEST, None)
        return found

    def remove(self, manifest: Manifest) -> None:
        # The manifest moves first: what it lists is deleted even if this stops half-way.
        with self._explained(f"delete {self.place(manifest.id)}"):
            moved = f"{self._root}/{manifest.id.pruned_name}/{layout.MANIFEST}"
            with suppress(FileExistsError):
                parent = moved.rpartition("/")[0]
                self._try(lambda: self._fs.mkdir(parent, create_parents=False))
            self._try(lambda: self._fs.pipe_file(moved, manifest.encode()))
            self._remove_files(manifest)

    def finish_removals(self) -> None:
        for name in layout.half_pruned(self.names()):
            where = f"{self._root}/{name}/{layout.MANIFEST}"
            with self._explained(f"delete {self.where}/{name}"):
                data = self._optional(where)
                if data is None:
                    self._remove_directory(f"{self._root}/{name}")
                    continue
                try:
                    manifest = Manifest.decode(where, data)
                except DamagedCheckpoint:
                    continue  # it is not known what of it is ours
                if manifest.id.pruned_name == name:
                    self._remove_files(manifest)

    def _remove_files(self, manifest: Manifest) -> None:
        which = manifest.id
        for name in (layout.MANIFEST, *(file.name for file in manifest.files)):
            self._delete(self._path(which, name))
        self._remove_directory(self._path(which))
        self._delete(f"{self._root}/{which.pruned_name}/{layout.MANIFEST}")
        self._remove_directory(f"{self._root}/{which.pruned_name}")

    # What the store is asked for

    def _path(self, which: CheckpointId, name: str = "") -> str:
        return f"{self._root}/{which.name}" + (f"/{name}" if name else "")

    def _try(self, call: Callable[[], _T]) -> _T:
        """Asks again after a while, unless the answer is one that will not change."""
        if self._first is not None:
            first, self._first = self._first, None
            return self._ask_first(call, first)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(OBJECT_STORE_TRIES),
            wait=_WAIT,
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        return retrying(call)

    def _ask_first(self, call: Callable[[], _T], first: Patience) -> _T:
        """Asks a store that has never answered."""
        note = first.note

        def report(error: BaseException | None, seconds: float) -> None:
            assert note is not None
            note(CheckpointUnreachable(self.where, self._why(error), seconds))

        with _fewer_tries(self._fs):
            try:
                reports = report if note else None
                return ask_storage(call, first.seconds, reports, _worth_asking, _WAIT, first.leave)
            except FirstContactTimeout as error:
                text = (
                    f"cannot reach {self.where}, which was tried for {first.seconds:g} s: "
                    f"{self._why(error.__cause__)}; check the URL, the address of the store and "
                    "the network"
                )
        raise CheckpointFailed(text) if note else CheckpointUsageError(text)

    def _why(self, error: BaseException | None) -> str:
        return "it does not answer" if error is None else self._without_secrets(error)

    def _list(self, path: str) -> list[Mapping[str, Any]]:
        # What is listed decides over terms and deletions: never from a cache.
        self._fs.invalidate_cache()
        try:
            found = self._try(lambda: self._fs.ls(path, detail=True))
        except FileNotFoundError:
            return []
        # Some stores list the place itself, as an empty object that stands for a directory.
        return [one for one in found if one["name"].strip("/") != path.strip("/")]

    def _optional(self, path: str) -> bytes | None:
        try:
            return bytes(self._try(lambda: self._fs.cat_file(path)))
        except FileNotFoundError:
            return None

    def _size(self, path: str) -> int | None:
        """In bytes; None if it is not there."""
        self._fs.invalidate_cache()
        try:
            return int(self._try(lambda: self._fs.info(path))["size"])
        except FileNotFoundError:
            return None

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._try(lambda: self._fs.rm_file(path))

    def _remove_directory(self, path: str) -> None:
        """Where directories are real; one with something in it stays."""
        with suppress(Exception):
            self._fs.rmdir(path)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Turns whatever a store's library raises into an error for people."""
        try:
            yield
        except (ElasticError, ImportError):
            raise
        except Exception as error:
            # Not chained: a traceback would show what has been taken out of the text.
            raise self._failure(doing, error) from None

    def _failure(self, doing: str, error: Exception) -> CheckpointFailed:
        text = self._without_secrets(error)
        refused = True
        if isinstance(error, PermissionError) or _of_credentials(error):
            remedy = "give the job credentials with the right to read, write, list and delete there"
        elif isinstance(error, FileNotFoundError):
            remedy = "make the bucket or correct the URL"
        else:
            refused = isinstance(error, FileExistsError | NotADirectoryError)
            remedy = "check the URL, the network and the state of the store"
        return CheckpointFailed(f"cannot {doing}: {text}; {remedy}", refused=refused)

    def _without_secrets(self, error: BaseException) -> str:
        """The first line of what it says."""
        text = (str(error).strip() or type(error).__name__).split("\n")[0]
        for secret in self._secrets | secrets_around():
            text = text.replace(secret, "***")
        return text


class RemoteWriter:
    """Uploads a file in parts while it is written; ``RemoteStorage.writer`` opens and closes it."""

    def __init__(self, file: Any, explained: Callable[[], Any]) -> None:
        """Takes a file of fsspec's, and what makes its errors readable."""
        self._file = file
        self._explained = explained

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Appends all buffers."""
        with self._explained():
            for buffer in buffers:
                # In pieces: the file keeps a copy of what it is given until a part is full.
                for start in range(0, buffer.nbytes, _PART):
                    self._file.write(buffer[start : start + _PART])


class RemoteReader:
    """Downloads ranges of a file, several at a time; ``RemoteStorage.reader`` makes it."""

    def __init__(
        self,
        where: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        pool: ThreadPoolExecutor,
    ) -> None:
        """Takes what to read with.

        Args:
            where: the file, for messages.
            size: its length in bytes.
            fetch: the bytes from a start to before an end.
            pool: runs several of these.
        """
        self._where = where
        self._size = size
        self._fetch = fetch
        self._pool = pool

    def expect(self, offset: int, length: int) -> None:
        """Parts are fetched when they are wanted, several at a time."""

    def readinto(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills all buffers from ``offset`` on."""
        end = offset + sum(buffer.nbytes for buffer in buffers)
        if end > self._size:
            raise DamagedCheckpoint(f"{self._where} is damaged: it ends at byte {self._size}")

        def load(start: int) -> None:
            stop = min(start + _RANGE, end)
            data = self._fetch(start, stop)
            if len(data) != stop - start:
                raise DamagedCheckpoint(f"{self._where} is damaged: bytes from {start} on are gone")
            _scatter(memoryview(data), buffers, start - offset)

        starts = range(offset, end, _RANGE)
        if len(starts) == 1:
            load(offset)
        else:
            futures = [self._pool.submit(load, start) for start in starts]
            _, others = wait(futures, return_when=FIRST_EXCEPTION)
            for future in others:
                future.cancel()
            wait(others)  # none may write into the buffers after this has returned
            for future in futures:
                if not future.cancelled():
                    future.result()


def _scatter(data: memoryview, buffers: Sequence[memoryview], position: int) -> None:
    """Copies ``data`` to byte ``position`` of all buffers put together."""
    for buffer in buffers:
        if not data.nbytes:
            return
        if position < buffer.nbytes:
            count = min(data.nbytes, buffer.nbytes - position)
            buffer[position : position + count] = data[:count]
            data = data[count:]
            position = 0
        else:
            position -= buffer.nbytes


@contextmanager
def _fewer_tries(fs: Any) -> Iterator[None]:
    """Makes s3fs raise its errors at once instead of trying again; others are unchanged."""
    tries = getattr(fs, "retries", None)
    if not isinstance(tries, int):
        yield
        return
    fs.retries = 1
    try:
        yield
    finally:
        fs.retries = tries


def _of_credentials(error: BaseException) -> bool:
    return "redential" in type(error).__name__


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, _FINAL)


def _worth_asking(error: BaseException) -> bool:
    """The same of a store that has never answered: what it needs has not been there yet."""
    return _may_pass(error) and not _of_credentials(error)


def _abandon(file: Any) -> None:
    """Ends an upload so that nothing of it appears, also not when the file is collected."""
    with suppress(Exception):
        file.discard()
    with suppress(Exception):
        file.closed = True


def _name(found: Mapping[str, Any]) -> str:
    return str(found["name"]).rstrip("/").rpartition("/")[2]
