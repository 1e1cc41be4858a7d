"""What agents leave behind in /tmp and /dev/shm."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

_SHM = "/dev/shm/"
_OF_AGENTS = "elastic-"


class Leftovers:
    """Directories of the agents of one job; other jobs may run beside it.

    Attributes:
        temporary: where the job keeps its temporary files. Its name is short, as it is part of
            the names of sockets.
    """

    def __init__(self) -> None:
        self.temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._seen: set[Path] = set()
        self._excused: set[Path] = set()
        self._killed = 0  # agents, since the last one started

    def started(self) -> None:
        """An agent has started: it removes what killed ones have left."""
        self._excused.clear()
        self._killed = 0

    def note(self, pid: int, *, killed: bool = False) -> None:
        """Remembers what an agent has in memory.

        Args:
            pid: of the agent.
            killed: it is about to be killed.
        """
        found = {Path(p) for d in Path(f"/proc/{pid}/fd").iterdir() for p in _shm_of(d)}
        self._seen |= found
        if killed:
            self._excused |= found
            self._killed += 1

    def check(self) -> None:
        """Nothing is left, but for what nobody was there to remove."""
        left = [path for path in self._seen - self._excused if path.exists()]
        assert not left, f"left behind: {left}"
        files = [*self.temporary.glob(f"{_OF_AGENTS}*")]
        assert len(files) <= self._killed, f"left behind: {files}"

    def close(self) -> None:
        """Removes all of it."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        for path in self._seen:
            shutil.rmtree(path, ignore_errors=True)


def _shm_of(descriptor: Path) -> list[str]:
    """The directory of an agent in which an open file of it lies, if it does in one."""
    try:
        target = str(descriptor.readlink())
    except OSError:
        return []
    if not target.startswith(f"{_SHM}{_OF_AGENTS}"):
        return []
    return [_SHM + target.removeprefix(_SHM).split("/", 1)[0]]
