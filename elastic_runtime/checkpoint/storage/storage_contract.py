"""Where checkpoints are kept: what every kind of storage can do, and the rules common to all.

``local_storage`` is a directory of a file system, also a shared one; ``remote_storage`` is anything
that fsspec knows; ``open_storage`` picks. Rank 0 takes the term, makes, commits and deletes; every
rank writes and reads files of its own.

A step of a save that is not durable yet is never relied upon by the next one: a file is durable
when its writer is left, all of them are before the manifest names them, and the manifest is what
makes the checkpoint exist. Nothing here needs torch.
"""

from __future__ import annotations

import errno
import json
import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from elastic_runtime.checkpoint.format import manifest as layout
from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.errors import (
    CheckpointFailed,
    CheckpointUsageError,
    DamagedCheckpoint,
    Superseded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

# How many bytes are read from a file system, and checksummed, at once: they stay in the processor's
# cache for that. An object store is asked for more at once (its ``read_size``). Not part of the
# format. The size of a write is ``WRITE_SIZE`` in ``save/file_writer.py``.
READ_SIZE = 1 << 20

PROBE_FILE = ".elastic-probe"  # is made and deleted to see whether a place can be written

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

# What a wrong setting looks like at the first look. Later on it passes as often as all else does.
_REFUSALS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENOENT}
)
# The ids of runs that say nothing: none was given, and torchrun calls that "none".
_NAMELESS = ("", "none")


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turns a failure of the file system into an error for people.

    Args:
        doing: what was being done to which path, after "cannot".

    Raises:
        CheckpointFailed: for any ``OSError`` in the body.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        remedy = _REMEDY.get(error.errno or 0, "see the system's log")
        refused = error.errno in _REFUSALS
        raise CheckpointFailed(f"cannot {doing}: {why}; {remedy}", refused=refused) from error


class Writer(Protocol):
    """A new file of a checkpoint, written from front to back."""

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Appends all buffers, each one-dimensional, of bytes.

        Raises:
            CheckpointFailed: the storage refuses or is full.
        """


class Reader(Protocol):
    """A file of a checkpoint, read anywhere; several threads may do so at the same time."""

    def expect(self, offset: int, length: int) -> None:
        """Says what is going to be read next, from front to back (bytes); a hint.

        Raises:
            DamagedCheckpoint: the file ends before, or cannot be read.
        """

    def readinto(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills all buffers, one after the other, with what is at ``offset`` (bytes).

        Raises:
            DamagedCheckpoint: the file ends before, or cannot be read.
        """


class Source(ABC):
    """A place that checkpoints can be read from.

    Attributes:
        where: the place as people write it, never with a credential in it.
        shared: whether other processes see it.
        read_size: how many bytes a reader is best asked for at once, and checksummed at once.
    """

    where: str
    shared = True
    read_size = READ_SIZE

    def place(self, which: CheckpointId | None = None, name: str = "") -> str:
        """A checkpoint or one of its files, for messages."""
        return "/".join(part for part in (self.where, which.name if which else "", name) if part)

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

    @abstractmethod
    def sizes(self, which: CheckpointId) -> Mapping[str, int]:
        """All that is in a checkpoint except the manifest: bytes by name; none if it is gone.

        Raises:
            CheckpointFailed: it cannot be listed.
        """


class Storage(Source):
    """A place that holds all checkpoints of a job."""

    _run = ""  # the run id under which this process has taken its term

    # Of the whole place

    @abstractmethod
    def prepare(self) -> None:
        """Makes the place, if need be, and checks that it can be written.

        Raises:
            CheckpointFailed: it cannot.
        """

    def first_look(self) -> None:
        """Does the same at the start of a job, when a refusal means a wrong setting.

        Raises:
            CheckpointUsageError: the place cannot be used by this job.
            CheckpointFailed: it fails at present.
        """
        try:
            self.prepare()
        except CheckpointFailed as error:
            if error.refused:
                raise CheckpointUsageError(str(error)) from error
            raise

    @abstractmethod
    def names(self) -> list[str]:
        """All entries, as they are now; none if the place does not exist.

        Raises:
            CheckpointFailed: it cannot be read.
        """

    def missing(self) -> str:
        """What of the place does not exist: its directory or its bucket; "" if all is there.

        Raises:
            CheckpointFailed: it cannot be read.
        """
        return ""

    # Terms

    def take_term(self, holder: Mapping[str, object]) -> int:
        """Takes the next term by creating its file, which only one can.

        A process of an earlier round must not take one after a process of a later round: it may
        have been stopped for a while, and not know yet that its round is over.

        Args:
            holder: who takes it: ``run``, ``incarnation`` of the job, ``round``, ``host``.

        Raises:
            Superseded: a later round of the same incarnation has taken the newest one.
            CheckpointFailed: the file cannot be written.
        """
        self._run = str(holder.get("run", ""))
        # The token distinguishes two processes where a store cannot create exclusively.
        content = json.dumps({**holder, "token": secrets.token_hex(8)}).encode()
        while True:
            term = layout.highest_term(names := self.names()) + 1
            self._refuse_earlier(holder, names, term - 1)
            if not self._create_exclusively(layout.term_name(term), content):
                continue
            # Seen from a stale listing, a lower term may have looked free.
            if layout.highest_term(names := self.names()) == term:
                break
        for name in layout.older_terms(names, term):
            self._forget(name)
        return term

    def _refuse_earlier(
        self, holder: Mapping[str, object], names: Sequence[str], newest: int
    ) -> None:
        """Raises Superseded if the newest term was taken in a later round than the holder's."""
        if layout.term_name(newest) not in names or not holder.get("incarnation"):
            return
        other = self._holder(newest)
        same = other.get("incarnation") == holder["incarnation"]
        later, own = other.get("round"), holder["round"]
        if same and isinstance(later, int) and isinstance(own, int) and later > own:
            raise self._taken(newest, f"and this process is still in round {own}")

    def _holder(self, term: int) -> Mapping[str, object]:
        """Who has taken a term; nothing if it is not taken now, or by an unknown process."""
        name = layout.term_name(term)
        found: object = None
        with storage_errors(f"read {self.where}/{name}"), suppress(FileNotFoundError, ValueError):
            found = json.loads(self._read_entry(name))
        return found if isinstance(found, dict) else {}

    def check_term(self, term: int) -> None:
        """Makes sure that no other process has taken a newer term.

        Raises:
            Superseded: a newer round of this job has.
            CheckpointUsageError: another job has, or an unknown process.
            CheckpointFailed: that cannot be found out at present.
        """
        highest = layout.highest_term(self.names())
        if highest > term:
            raise self._taken(highest, f"and this process holds term {term}")

    def _taken(self, term: int, how: str) -> Superseded | CheckpointUsageError:
        """The error for a term that another process has taken."""
        try:
            found = json.loads(self._read_entry(layout.term_name(term)))
            run = str(found["run"])
            name = "" if run in _NAMELESS else f"run {run}, "
            holder = f" ({name}round {found['round']}, {found['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            run = holder = ""
        what = f"{self.where} now belongs to term {term}{holder}, {how}: "
        if run == self._run and run not in _NAMELESS:
            return Superseded(
                f"{what}this job has gone on without this process, which wrote nothing more"
            )
        return CheckpointUsageError(
            f"{what}a newer round or another job saves there; nothing more was written"
        )

    @abstractmethod
    def _create_exclusively(self, name: str, content: bytes) -> bool:
        """Makes a durable entry unless it exists, in one step; False if it does."""

    @abstractmethod
    def _read_entry(self, name: str) -> bytes:
        """The content of a file right in the place; OSError if that cannot be had."""

    @abstractmethod
    def _forget(self, name: str) -> None:
        """Deletes an entry that is no longer needed, if that is possible."""

    # What is left behind

    def set_aside(self, which: CheckpointId, why: Mapping[str, object]) -> None:
        """Takes a checkpoint out of the order, and leaves all of it where it is.

        Args:
            which: the checkpoint.
            why: for people: who did it, and what the job continued from.

        Raises:
            CheckpointError: that cannot be written.
        """
        self._create_exclusively(which.aside_name, json.dumps(why).encode())

    def put_back(self, which: CheckpointId) -> None:
        """Undoes ``set_aside``.

        Raises:
            CheckpointError: the storage refuses.
        """
        self._forget(which.aside_name)
        if which.aside_name in self.names():
            raise CheckpointFailed(
                f"cannot delete {self.where}/{which.aside_name}: the storage refuses; see its "
                "rights"
            )

    def why_aside(self, which: CheckpointId) -> str:
        """Why it was set aside, for people; "" if that cannot be read."""
        try:
            return str(json.loads(self._read_entry(which.aside_name))["why"])
        except (OSError, ValueError, KeyError, TypeError, CheckpointFailed):
            return ""

    # A save

    @abstractmethod
    def create(self, which: CheckpointId) -> bool:
        """Makes the directory of a new checkpoint, which does not count before ``commit``.

        Returns:
            False if something of this name is there already, which is left as it is.

        Raises:
            CheckpointFailed: it cannot be made.
        """

    @abstractmethod
    def writer(self, which: CheckpointId, name: str, size: int) -> AbstractContextManager[Writer]:
        """A new file, durable when the ``with`` block is left without an error.

        Args:
            which: made by ``create``, maybe by another rank.
            name: of the file; it must not exist.
            size: how many bytes it is going to have.

        Raises:
            CheckpointFailed: it cannot be made, written or made durable.
        """

    def commit(self, manifest: Manifest) -> None:
        """Writes the manifest, which makes the checkpoint exist.

        Raises:
            CheckpointFailed: the manifest cannot be written, as far as is known.
            CheckpointError: a newer term was taken meanwhile.
        """
        self.check_term(manifest.term)
        self._publish(manifest.id, manifest.encode())

    @abstractmethod
    def _publish(self, which: CheckpointId, content: bytes) -> None:
        """Makes the manifest appear, whole, durable and after everything else."""

    @abstractmethod
    def discard(self, which: CheckpointId) -> None:
        """Removes what a failed save of this process has left, as far as that is possible."""

    # Retention

    @abstractmethod
    def remove(self, manifest: Manifest) -> None:
        """Deletes what a manifest lists, in such a way that the checkpoint never exists in part.

        Raises:
            CheckpointFailed: something could not be deleted; ``finish_removals`` tries again.
        """

    @abstractmethod
    def finish_removals(self) -> None:
        """Deletes the rest of what an earlier ``remove`` began with.

        Raises:
            CheckpointFailed: something could not be deleted.
        """
