"""The place of a job's checkpoints, which a test can fill up or break while the job runs.

The test mounts a small tmpfs there, which is really full when it is full; who may not mount has
its workers raise ENOSPC instead. That a disk breaks cannot be had for real: EIO always comes from
the functions of ``os`` in the workers.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.faults import Fault, FaultyFiles

_SIZE = "4m"


class SlowFiles(FaultyFiles):
    """In a worker: each call takes its time, and fails while a file says how.

    Args:
        directory: where this is so.
        trouble: holds the name of an error while there is one, such as ``EIO``.
        seconds: what each call takes at most.
    """

    def __init__(self, directory: Path, trouble: Path, seconds: float) -> None:
        super().__init__(directory, Fault())
        self._trouble, self._seconds = trouble, seconds
        self._draw = random.Random(os.getpid())

    def _reaches(self, call: str, path: str) -> str:
        time.sleep(self._draw.random() * self._seconds)
        try:
            code = getattr(errno, self._trouble.read_text())
        except FileNotFoundError:
            return ""
        raise OSError(code, os.strerror(code), path)


class Disk:
    """In the test: the directory itself.

    Args:
        path: a name for it.
        trouble: see ``SlowFiles``.
        small: it is to be one that can be full.

    Attributes:
        path: the directory.
        trouble: see ``SlowFiles``.
    """

    def __init__(self, path: Path, trouble: Path, *, small: bool) -> None:
        # Elsewhere: what is mounted cannot be removed if the test is killed.
        self.path, self.trouble = Path(tempfile.mkdtemp(prefix="chaos-disk-")), trouble
        path.symlink_to(self.path)
        self._last = path.with_suffix(".last")
        self.mounted = False
        self._filler = self.path / "filler"
        if small:
            self._mount()

    def _mount(self) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(self.path)]
        with suppress(FileNotFoundError):
            done = subprocess.run(command, capture_output=True, check=False)
            self.mounted = done.returncode == 0

    def fill(self) -> str:
        """Leaves no room; returns how."""
        if not self.mounted:
            self._fail("ENOSPC")
            return "ENOSPC is raised"
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        return "the tmpfs is full"

    def break_it(self) -> str:
        """Nothing that changes it succeeds any more; returns how."""
        self._fail("EIO")
        return "EIO is raised"

    def mend(self) -> None:
        """All is well again."""
        self.trouble.unlink(missing_ok=True)
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives it back; what is there stays beside it, for those who look for a cause."""
        shutil.copytree(self.path, self._last)
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def _fail(self, name: str) -> None:
        draft = self.trouble.with_suffix(".draft")
        draft.write_text(name)
        draft.rename(self.trouble)
