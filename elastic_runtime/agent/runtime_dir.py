"""An agent's runtime directory, and the sweeping of those that killed agents have left behind.

The directory is locked for as long as its agent runs, by a lock that the kernel gives back when
the process ends, however it ends. So one that can be locked has no owner, also where several
containers share a ``/tmp`` and process ids mean nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress

from elastic_runtime.agent.reaper import LOCK
from elastic_runtime.errors import UsageError

_PREFIX = "elastic-agent-"


def check_temporary_files() -> None:
    """Makes sure that temporary files can be made at all.

    Raises:
        UsageError: there is no such place, as in a container with a read-only root.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UsageError(
            f"temporary files cannot be made anywhere ({error.strerror}): set TMPDIR to a place "
            "that can be written to; in a container whose root is read-only, mount one at /tmp"
        ) from None


class RuntimeDir:
    """A fresh directory that only this user can read.

    Attributes:
        path: where it is.
    """

    def __init__(self, parent: str = "", prefix: str = _PREFIX) -> None:
        """Makes it, and removes those of dead agents.

        Args:
            parent: where; "": where temporary files are kept.
            prefix: how its name begins.

        Raises:
            UsageError: there is no such place, or no space there.
        """
        try:
            sweep(parent, prefix)
            self.path = tempfile.mkdtemp(prefix=prefix, dir=parent or None)
            self._take()
        except OSError as error:
            where = f"in {parent}" if parent else "where temporary files are kept"
            advice = "" if parent else "; set TMPDIR to a directory that can be written to"
            raise UsageError(f"no directory can be made {where} ({error}){advice}") from None

    def renew(self) -> bool:
        """Makes it again, empty, if somebody has removed it: a cleaner of temporary files, perhaps.

        Returns:
            Whether it was made again.

        Raises:
            OSError: it cannot be made, or its name is taken.
        """
        ours = os.fstat(self._descriptor)
        with suppress(FileNotFoundError):
            if os.path.samestat(ours, os.stat(self.path, follow_symlinks=False)):
                return False
        os.makedirs(self.path, 0o700)  # and never one that somebody else has made
        before = self._descriptor, self._lock
        self._take()
        for descriptor in before:
            os.close(descriptor)
        return True

    def _take(self) -> None:
        """Locks it, and keeps it open, so that another one of its name can be recognised."""
        self._descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # Locked before it gets its name: an agent that starts at the same time and sweeps must
        # never find a lock that is not held yet.
        draft, lock = (os.path.join(self.path, name) for name in (f"{LOCK}.new", LOCK))
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(draft, lock)

    def remove(self, keep: str = "") -> None:
        """Removes it.

        Args:
            keep: the name of something in it that stays, as its path was shown to people.
        """
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):  # somebody else has removed it
                for entry in os.scandir(self.path):
                    if entry.name != keep:
                        _remove(entry)
        os.close(self._lock)
        os.close(self._descriptor)


def _remove(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def sweep(parent: str = "", prefix: str = _PREFIX) -> None:
    """Removes the directories of agents that have died; one without a lock was kept on purpose."""
    for entry in os.scandir(parent or tempfile.gettempdir()):
        if not entry.name.startswith(prefix):
            continue
        with suppress(OSError):
            descriptor = os.open(os.path.join(entry.path, LOCK), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(descriptor)
