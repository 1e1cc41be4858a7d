"""Checkpoints in a directory of a file system that all nodes see: a local disk, NFS, tmpfs."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format import manifest as layout
from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.storage.storage_contract import PROBE_FILE, Storage, storage_errors
from elastic_runtime.errors import CheckpointFailed, CheckpointUsageError, DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MODE = 0o666  # less the umask
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")


class LocalStorage(Storage):
    """A directory.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Remembers the path; nothing is touched.

        Args:
            path: of the directory. A relative one is meant from where the process is now: a script
                that goes elsewhere later goes on to save in the same place.

        Raises:
            CheckpointUsageError: it is relative, and there is no directory to start from.
        """
        try:
            self.path = Path(path).absolute()  # ``..`` stays: what it means is up to the links
        except FileNotFoundError:
            raise CheckpointUsageError(
                f"the checkpoint directory {os.fspath(path)} is relative, and the directory that "
                "this process is in has been deleted; give an absolute path"
            ) from None
        self.where = str(self.path)

    def prepare(self) -> None:
        with storage_errors(f"save checkpoints in {self.path}"):
            self._make()
            probe = self.path / PROBE_FILE
            probe.unlink(missing_ok=True)
            try:
                with suppress(FileExistsError):  # another process looks, too
                    _write_durably(probe, b"\n")  # an empty file would fit on a full disk
            finally:
                probe.unlink(missing_ok=True)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            for link in (self.path, *self.path.parents):
                if link.is_symlink() and not link.exists():
                    raise CheckpointFailed(
                        f"cannot save checkpoints in {self.path}: {link} is a symbolic link to "
                        f"{os.readlink(link)}, which is not there; make that directory, or choose "
                        "another one",
                        refused=True,
                    ) from None
            raise

    def names(self) -> list[str]:
        with storage_errors(f"read the checkpoint directory {self.path}"):
            try:
                return os.listdir(self.path)
            except FileNotFoundError:
                return []

    def missing(self) -> str:
        return "" if self.path.exists() else f"directory {self.path}"

    # Terms

    def _create_exclusively(self, name: str, content: bytes) -> bool:
        with storage_errors(f"take a term in {self.path}"):
            try:
                _write_durably(self.path / name, content)
            except FileExistsError:
                return False
            _sync_directory(self.path)
        return True

    def _read_entry(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def _forget(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self.path / name)

    # A save

    def create(self, which: CheckpointId) -> bool:
        path = self.path / which.name
        with storage_errors(f"save to {path}"):
            try:
                os.mkdir(path)
            except FileExistsError:
                return False
        return True

    @contextmanager
    def writer(self, which: CheckpointId, name: str, size: int) -> Iterator[LocalWriter]:
        path = self.path / which.name / name
        with storage_errors(f"save to {path}"):
            _require_space(path.parent, size)
            descriptor = os.open(path, _NEW, _MODE)
        try:
            out = LocalWriter(path, descriptor)
            yield out
            out.sync()
        finally:
            with suppress(OSError):  # what was synced is safe, and the rest has failed already
                os.close(descriptor)

    def _publish(self, which: CheckpointId, content: bytes) -> None:
        path = self.path / which.name
        with storage_errors(f"save to {path}"):
            partial = path / f"{layout.MANIFEST}.partial"
            _write_durably(partial, content)
            os.rename(partial, path / layout.MANIFEST)
            _sync_directory(path)
            _sync_directory(self.path)

    def discard(self, which: CheckpointId) -> None:
        path = self.path / which.name
        with suppress(OSError):
            # The manifest goes first: without it nothing of this counts. If it is renamed to its
            # place in this moment, its draft is missing, and all the rest stays.
            for name in sorted(os.listdir(path), key=_manifest_first):
                os.unlink(path / name)
            os.rmdir(path)

    # A load

    def has_manifest(self, which: CheckpointId) -> bool:
        path = self.path / which.name / layout.MANIFEST
        with storage_errors(f"read {path}"):
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def _manifest_bytes(self, which: CheckpointId) -> bytes | None:
        return _optional_bytes(self.path / which.name / layout.MANIFEST)

    def read_bytes(self, which: CheckpointId, name: str) -> bytes:
        path = self.path / which.name / name
        with _damage(path):
            return path.read_bytes()

    @contextmanager
    def reader(self, which: CheckpointId, name: str) -> Iterator[LocalReader]:
        path = self.path / which.name / name
        with _damage(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield LocalReader(path, descriptor)
        finally:
            os.close(descriptor)

    # Retention

    def sizes(self, which: CheckpointId) -> dict[str, int]:
        path = self.path / which.name
        with storage_errors(f"read {path}"):
            try:
                with os.scandir(path) as entries:
                    return {e.name: e.stat().st_size for e in entries if e.name != layout.MANIFEST}
            except (FileNotFoundError, NotADirectoryError):
                return {}

    def remove(self, manifest: Manifest) -> None:
        path, doomed = self.path / manifest.id.name, self.path / manifest.id.pruned_name
        with storage_errors(f"delete {path}"):
            os.rename(path, doomed)
            _delete(doomed, manifest)

    def finish_removals(self) -> None:
        for name in layout.half_pruned(self.names()):
            path = self.path / name
            try:
                data = _optional_bytes(path / layout.MANIFEST)
                manifest = Manifest.decode(str(path), data) if data is not None else None
            except DamagedCheckpoint:
                continue  # it is not known what in it is ours
            with storage_errors(f"delete {path}"):
                _delete(path, manifest)


class LocalWriter:
    """Writes a file; ``LocalStorage.writer`` opens and closes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Takes over nothing: the descriptor stays the caller's."""
        self._path = path
        self._descriptor = descriptor
        self._written = 0

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Appends all buffers."""
        with storage_errors(f"save to {self._path}"):
            wanted = sum(buffer.nbytes for buffer in buffers)
            count = _transfer(os.pwritev, self._descriptor, buffers, self._written)
            if count < wanted:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._written += count

    def sync(self) -> None:
        """Returns when all of it is durable."""
        with storage_errors(f"save to {self._path}"):
            os.fsync(self._descriptor)


class LocalReader:
    """Reads a file; ``LocalStorage.reader`` opens and closes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Takes over nothing: the descriptor stays the caller's."""
        self._path = path
        self._descriptor = descriptor

    def expect(self, offset: int, length: int) -> None:
        """The kernel reads ahead by itself."""

    def readinto(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills all buffers from ``offset`` on."""
        with _damage(self._path):
            wanted = sum(buffer.nbytes for buffer in buffers)
            count = _transfer(os.preadv, self._descriptor, buffers, offset)
        if count < wanted:
            raise DamagedCheckpoint(f"{self._path} is damaged: it ends at byte {offset + count}")


def _transfer(
    call: Callable[[int, Sequence[memoryview], int], int],
    descriptor: int,
    buffers: Sequence[memoryview],
    offset: int,
) -> int:
    """Reads or writes until all buffers are through, however little one call does.

    Returns:
        How many bytes went through: fewer than there are if a call moved none.
    """
    left = [buffer for buffer in buffers if buffer.nbytes]
    first = total = 0
    while first < len(left):
        count = call(descriptor, left[first : first + _MOST_BUFFERS], offset + total)
        if count == 0:
            break
        total += count
        while count:
            if count < left[first].nbytes:
                left[first] = left[first][count:]
                break
            count -= left[first].nbytes
            first += 1
    return total


def _require_space(path: Path, size: int) -> None:
    """Fails before a disk is filled up, as far as that can be known before."""
    free = os.statvfs(path)
    if free.f_blocks and size > free.f_bavail * free.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, _NEW, _MODE)
    try:
        if _transfer(os.pwritev, descriptor, [memoryview(content)], 0) < len(content):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest_first(name: str) -> bool:
    return not name.startswith(layout.MANIFEST)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _optional_bytes(path: Path) -> bytes | None:
    try:
        with _damage(path):
            return path.read_bytes()
    except DamagedCheckpoint as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from error


def _delete(path: Path, manifest: Manifest | None) -> None:
    """Deletes what the manifest lists; whatever else is there stays, and so does the directory."""
    for file in manifest.files if manifest else ():
        (path / file.name).unlink(missing_ok=True)
    # The manifest goes last: it says what may be deleted if this stops half-way.
    (path / layout.MANIFEST).unlink(missing_ok=True)
    with suppress(OSError):  # a file was put there; it is not ours to delete
        path.rmdir()
