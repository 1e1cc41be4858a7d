"""Where checkpoints are kept: what every kind of storage can do, and the rules common to all.

``local`` is a directory of a file system, also a shared one; ``remote`` is anything that fsspec
knows. ``storages.open_storage`` picks. Rank 0 takes the term, makes, commits and deletes; every
rank writes and reads files of its own.

A step of a save that is not durable yet is never relied upon by the next one: a file is durable
when its writer is left, all of them are before the manifest names them, and the manifest is what
makes the checkpoint exist. Nothing here needs torch.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self

import crc32c

from elastic_runtime.checkpoint import manifest as layout
from elastic_runtime.checkpoint.manifest import CheckpointId, FileRecord, Manifest
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

_CHUNK = 1 << 20

_REMEDY = {
    errno.ENOSPC: "free some space or lower keep=",
    errno.EDQUOT: "free some of the quota or lower keep=",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "choose a directory on a writable file system",
    errno.EACCES: "give the job the right to write there or choose another directory",
    errno.EPERM: "give the job the right to write there or choose another directory",
    errno.EEXIST: "choose a directory, this is a file",
    errno.ENOTDIR: "choose a directory, part of the path is a file",
    errno.ENOENT: "the directory must be on storage that all nodes share, and must not be removed",
}


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turns a failure of the file system into an error for people.

    Args:
        doing: what was being done to which path, after "cannot".

    Raises:
        CheckpointError: for any ``OSError`` in the body.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        remedy = _REMEDY.get(error.errno or 0, "see the system's log")
        raise CheckpointError(f"cannot {doing}: {why}; {remedy}") from error


class Writer(Protocol):
    """A new file of a checkpoint, written from front to back."""

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Appends all buffers, each one-dimensional, of bytes.

        Raises:
            CheckpointError: the storage refuses or is full.
        """


class Reader(Protocol):
    """A file of a checkpoint, read anywhere; several threads may do so at the same time."""

    def readinto(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills all buffers, one after the other, with what is at ``offset`` (bytes).

        Raises:
            DamagedCheckpoint: the file ends before, or cannot be read.
        """


class Storage(ABC):
    """A place that holds all checkpoints of a job.

    Attributes:
        where: the place as people write it, never with a credential in it.
        chunk: how many bytes a reader is best asked for at once.
    """

    where: str
    chunk = 1 << 20  # stays in the processor's cache while it is checksummed

    def place(self, which: CheckpointId | None = None, name: str = "") -> str:
        """A checkpoint or one of its files, for messages."""
        return "/".join(part for part in (self.where, which.name if which else "", name) if part)

    # Of the whole place

    @abstractmethod
    def prepare(self) -> None:
        """Makes the place, if need be, and checks that it can be written.

        Raises:
            CheckpointError: it cannot.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """All entries, as they are now; none if the place does not exist.

        Raises:
            CheckpointError: it cannot be read.
        """

    # Terms

    def take_term(self, holder: Mapping[str, object]) -> int:
        """Takes the next term by creating its file, which only one can.

        Args:
            holder: who takes it, for people: ``run``, ``round``, ``host``.

        Raises:
            CheckpointError: the file cannot be written.
        """
        # The token tells two takers apart, where a store cannot create exclusively.
        content = json.dumps({**holder, "token": secrets.token_hex(8)}).encode()
        while True:
            term = layout.highest_term(self.names()) + 1
            if not self._create_exclusively(layout.term_name(term), content):
                continue
            # Seen from a stale listing, a lower term may have looked free.
            if layout.highest_term(names := self.names()) == term:
                break
        for name in layout.older_terms(names, term):
            self._forget(name)
        return term

    def check_term(self, term: int) -> None:
        """Makes sure that nobody has taken a newer term.

        Raises:
            CheckpointError: somebody has: a newer round of this job, or another job.
        """
        highest = layout.highest_term(self.names())
        if highest > term:
            raise CheckpointError(
                f"{self.where} now belongs to term {highest}{self._holder(highest)}, and this "
                f"process holds term {term}: a newer round or another job saves there; "
                "nothing more was written"
            )

    def _holder(self, term: int) -> str:
        try:
            found = json.loads(self._read_entry(layout.term_name(term)))
            return f" (run {found['run']}, round {found['round']}, {found['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @abstractmethod
    def _create_exclusively(self, name: str, content: bytes) -> bool:
        """Makes a durable entry unless it exists, in one step; False if it does."""

    @abstractmethod
    def _read_entry(self, name: str) -> bytes:
        """The content of a file right in the place; OSError if that cannot be had."""

    @abstractmethod
    def _forget(self, name: str) -> None:
        """Deletes an entry that is no longer needed, if that is possible."""

    # A save

    @abstractmethod
    def create(self, which: CheckpointId) -> None:
        """Makes room for a new checkpoint; it is none before ``commit``.

        Raises:
            CheckpointError: it exists already or cannot be made.
        """

    @abstractmethod
    def writer(self, which: CheckpointId, name: str, size: int) -> AbstractContextManager[Writer]:
        """A new file, durable when the ``with`` block is left without an error.

        Args:
            which: made by ``create``, maybe by another rank.
            name: of the file; it must not exist.
            size: how many bytes it is going to have.

        Raises:
            CheckpointError: it cannot be made, written or made durable.
        """

    def commit(self, manifest: Manifest) -> None:
        """Writes the manifest, which makes the checkpoint exist.

        Raises:
            CheckpointError: a newer term was taken meanwhile, or the manifest cannot be written.
        """
        self.check_term(manifest.term)
        self._publish(manifest.id, manifest.encode())

    @abstractmethod
    def _publish(self, which: CheckpointId, content: bytes) -> None:
        """Makes the manifest appear, whole, durable and after everything else."""

    @abstractmethod
    def discard(self, which: CheckpointId) -> None:
        """Removes what a failed save of this process has left, as far as that is possible."""

    # A load

    @abstractmethod
    def has_manifest(self, which: CheckpointId) -> bool:
        """Whether a checkpoint claims to be whole."""

    def read_manifest(self, which: CheckpointId) -> Manifest | None:
        """The manifest of a checkpoint; None if it has none, so that it is no checkpoint.

        Raises:
            DamagedCheckpoint: there is one that cannot be used.
        """
        data = self._manifest_bytes(which)
        if data is None:
            return None
        where = self.place(which, layout.MANIFEST)
        manifest = Manifest.decode(where, data)
        if manifest.id != which:
            raise DamagedCheckpoint(f"{where} is damaged: it is the manifest of {manifest.id.name}")
        return manifest

    @abstractmethod
    def _manifest_bytes(self, which: CheckpointId) -> bytes | None:
        """What the manifest's file holds; None if there is none."""

    @abstractmethod
    def read_bytes(self, which: CheckpointId, name: str) -> bytes:
        """A whole file, for small ones.

        Raises:
            DamagedCheckpoint: it is missing or cannot be read.
        """

    @abstractmethod
    def reader(self, which: CheckpointId, name: str) -> AbstractContextManager[Reader]:
        """A file for reading.

        Raises:
            DamagedCheckpoint: it is missing or cannot be read.
        """

    # Retention

    @abstractmethod
    def sizes(self, which: CheckpointId) -> Mapping[str, int]:
        """All that is in a checkpoint except the manifest: bytes by name; none if it is gone.

        Raises:
            CheckpointError: it cannot be listed.
        """

    @abstractmethod
    def remove(self, manifest: Manifest) -> None:
        """Deletes what a manifest lists, in such a way that the checkpoint never exists in part.

        Raises:
            CheckpointError: something could not be deleted; ``finish_removals`` tries again.
        """

    @abstractmethod
    def finish_removals(self) -> None:
        """Deletes the rest of what an earlier ``remove`` began with.

        Raises:
            CheckpointError: something could not be deleted.
        """


# The former names, until all who use them have moved over


class ChecksumWriter:
    """A new file that is checksummed while it is written, and durable after the ``with`` block."""

    def __init__(self, path: Path) -> None:
        """Creates the file; it must not exist."""
        self._path = path
        self._file = open(path, "xb", buffering=_CHUNK)
        self._crc = 0
        self._length = 0

    def write(self, data: bytes | memoryview) -> int:
        """Appends ``data`` and returns its length in bytes."""
        self._crc = crc32c.crc32c(data, self._crc)
        self._file.write(data)
        size = memoryview(data).nbytes
        self._length += size
        return size

    def tell(self) -> int:
        """Bytes written so far."""
        return self._length

    def flush(self) -> None:
        """Does nothing: what counts is the end of the ``with`` block."""

    def record(self) -> FileRecord:
        """What was written."""
        return FileRecord(self._path.name, self._length, self._crc)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            # What is left in the buffer has no use; a second error would hide the first.
            with suppress(OSError):
                self._file.close()
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def check_file(path: Path, record: FileRecord) -> None:
    """Reads a file and compares it with what was written.

    Raises:
        DamagedCheckpoint: it is missing, or its length or its checksum differ.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            length, crc = _digest(file)
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    if length != record.bytes:
        raise DamagedCheckpoint(f"{path} is damaged: {length} bytes instead of {record.bytes}")
    if crc != record.crc32c:
        raise DamagedCheckpoint(f"{path} is damaged: its checksum does not match")


def _digest(file: BinaryIO) -> tuple[int, int]:
    buffer = memoryview(bytearray(_CHUNK))
    length = crc = 0
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        crc = crc32c.crc32c(buffer[:count], crc)
        length += count
    return length, crc


class CheckpointDirectory:
    """The directory that holds all checkpoints of a job."""

    def __init__(self, path: Path) -> None:
        """Remembers the path; nothing is touched."""
        self.path = path

    def prepare(self) -> None:
        """Makes the directory and checks that files can be made in it.

        Raises:
            CheckpointError: it is a file, or cannot be written.
        """
        with explained(f"save checkpoints in {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".elastic-probe"
            probe.touch()
            probe.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """All entries; none if the directory does not exist.

        Raises:
            CheckpointError: it cannot be read.
        """
        with explained(f"read the checkpoint directory {self.path}"):
            try:
                return os.listdir(self.path)
            except FileNotFoundError:
                return []

    # Terms

    def take_term(self, holder: dict[str, object]) -> int:
        """Takes the next term by creating its file, which only one can.

        Args:
            holder: who takes it, for people.

        Raises:
            CheckpointError: the file cannot be written.
        """
        with explained(f"take a term in {self.path}"):
            while True:
                term = layout.highest_term(self.names()) + 1
                try:
                    with open(self.path / layout.term_name(term), "x") as file:
                        json.dump(holder, file)
                        file.flush()
                        os.fsync(file.fileno())
                except FileExistsError:
                    continue
                # Seen from a stale listing, a lower term may have looked free.
                if layout.highest_term(names := self.names()) == term:
                    break
        for name in layout.older_terms(names, term):
            with suppress(OSError):
                (self.path / name).unlink()
        return term

    def check_term(self, term: int) -> None:
        """Makes sure that nobody has taken a newer term.

        Raises:
            CheckpointError: somebody has: a newer round of this job, or another job.
        """
        highest = layout.highest_term(self.names())
        if highest > term:
            raise CheckpointError(
                f"{self.path} now belongs to term {highest}{self._holder(highest)}, and this "
                f"process holds term {term}: a newer round or another job saves there; "
                "nothing more was written"
            )

    def _holder(self, term: int) -> str:
        try:
            found = json.loads((self.path / layout.term_name(term)).read_bytes())
            return f" (run {found['run']}, round {found['round']}, {found['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    # One checkpoint

    def create(self, which: CheckpointId) -> Path:
        """Makes the directory of a new checkpoint; it is none before ``commit``.

        Raises:
            CheckpointError: it exists already or cannot be made.
        """
        path = self.path / which.name
        with explained(f"save to {path}"):
            try:
                path.mkdir()
            except FileExistsError:
                raise CheckpointError(
                    f"cannot save to {path}: the rest of a failed save is there; remove it"
                ) from None
        return path

    def commit(self, manifest: Manifest) -> None:
        """Writes the manifest, which makes the checkpoint exist.

        Raises:
            CheckpointError: a newer term was taken meanwhile, or the manifest cannot be written.
        """
        self.check_term(manifest.term)
        path = self.path / manifest.id.name
        with explained(f"save to {path}"):
            partial = path / f"{layout.MANIFEST}.partial"
            with ChecksumWriter(partial) as out:
                out.write(manifest.encode())
            partial.rename(path / layout.MANIFEST)
            _sync_directory(path)
            _sync_directory(self.path)

    def discard(self, which: CheckpointId) -> None:
        """Removes what a failed save of this process has left, as far as that is possible."""
        path = self.path / which.name
        with suppress(OSError):
            for entry in os.scandir(path):
                os.unlink(entry.path)
            path.rmdir()

    def has_manifest(self, which: CheckpointId) -> bool:
        """Whether a checkpoint claims to be whole."""
        return (self.path / which.name / layout.MANIFEST).exists()

    def read_manifest(self, which: CheckpointId) -> Manifest | None:
        """The manifest of a checkpoint; None if it has none, so that it is no checkpoint.

        Raises:
            DamagedCheckpoint: there is one that cannot be used.
        """
        return self._manifest_in(self.path / which.name, which)

    def _manifest_in(self, path: Path, which: CheckpointId) -> Manifest | None:
        where = path / layout.MANIFEST
        try:
            data = where.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedCheckpoint(f"{where} cannot be read: {error.strerror}") from error
        manifest = Manifest.decode(str(where), data)
        if manifest.id != which:
            raise DamagedCheckpoint(f"{where} is damaged: it is the manifest of {manifest.id.name}")
        return manifest

    # Retention

    def prune(self, keep: int) -> None:
        """Deletes all but the newest ``keep`` whole checkpoints.

        Only checkpoints whose files are all there count. A directory with anything that no
        manifest lists is left alone, and so is one without a manifest.

        Raises:
            OSError: something could not be deleted.
        """
        names = self.names()
        for name in layout.half_pruned(names):
            self._delete(self.path / name)
        whole = [one for one in layout.newest_first(names) if self._is_whole(one)]
        for which in whole[keep:]:
            doomed = self.path / which.pruned_name
            (self.path / which.name).rename(doomed)
            self._delete(doomed)

    def _is_whole(self, which: CheckpointId) -> bool:
        try:
            manifest = self.read_manifest(which)
        except DamagedCheckpoint:
            return False
        if manifest is None:
            return False
        expected = {file.name: file.bytes for file in manifest.files}
        with os.scandir(self.path / which.name) as entries:
            sizes = {e.name: e.stat().st_size for e in entries if e.name != layout.MANIFEST}
        return sizes == expected

    def _delete(self, path: Path) -> None:
        # The manifest goes last: it says what may be deleted if this stops half-way.
        which = CheckpointId.parse(path.name.removeprefix("pruned."))
        try:
            manifest = self._manifest_in(path, which) if which else None
        except DamagedCheckpoint:
            return
        for file in manifest.files if manifest else ():
            (path / file.name).unlink(missing_ok=True)
        (path / layout.MANIFEST).unlink(missing_ok=True)
        with suppress(OSError):  # somebody put a file there; it is not ours to delete
            path.rmdir()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
