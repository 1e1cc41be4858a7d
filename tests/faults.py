"""A file system that fails, or a process that dies, at a chosen point of the work in a directory.

Every open for writing, write, fsync, rename, mkdir and deletion is a point. The functions of ``os``
are replaced in this process, so it is to be one of the test's own.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.ranks import kill_self

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER = -1
_ALL = ("open", "mkdir", "pwritev", "fsync", "rename", "unlink", "rmdir")
_TAKING_SPACE = ("open", "mkdir", "pwritev")


@dataclass(frozen=True)
class Fault:
    """What happens at which point.

    Attributes:
        at: the number of the point, from 1, or what it is, as in a story; ``NEVER``: they are only
            counted.
        kind: ``ENOSPC``, ``EIO``: the call fails. ``short``: a write does half of it. ``full``:
            from there on nothing that takes space succeeds. ``broken``: nothing at all does.
            ``kill``: the process dies before the call. ``torn``: it dies after half of the write.
            ``hold``: the call waits until ``release`` exists; ``release.held`` says that it does.
        release: see ``hold``.
    """

    at: int | str = NEVER
    kind: str = ""
    release: Path = Path()


class FaultyFiles:
    """Counts the points in a directory, and lets one of them fail.

    Attributes:
        story: the points so far, each as "call name".
        written: bytes that were written.
    """

    def __init__(self, directory: Path, fault: Fault) -> None:
        """Replaces the functions of ``os`` until ``lift``.

        Args:
            directory: what happens elsewhere does not count.
            fault: what is to happen.
        """
        self.story: list[str] = []
        self.written = 0
        self._directory = str(directory)
        self._fault = fault
        self._open: dict[int, str] = {}  # descriptors in the directory
        self._lock = threading.RLock()
        self._real: dict[str, Callable[..., Any]] = {
            name: getattr(os, name) for name in (*_ALL, "close")
        }
        for name in self._real:
            setattr(os, name, getattr(self, f"_on_{name}", None) or self._on_path(name))

    def lift(self) -> None:
        """All is well again."""
        for name, function in self._real.items():
            setattr(os, name, function)

    def _reaches(self, call: str, path: str) -> str:
        """Counts a point and returns what is to happen to it, "" for nothing."""
        with self._lock:
            self.story.append(f"{call} {os.path.basename(path)}")
            number, fault = len(self.story), self._fault
            if self.story[-1] == fault.at:
                fault = self._fault = replace(fault, at=number)
        if isinstance(fault.at, str) or fault.at == NEVER or number < fault.at:
            return ""
        if fault.kind == "broken" or (fault.kind == "full" and call in _TAKING_SPACE):
            code = errno.EIO if fault.kind == "broken" else errno.ENOSPC
            raise OSError(code, os.strerror(code), path)
        if number > fault.at:
            return ""
        if fault.kind in ("ENOSPC", "EIO"):
            code = getattr(errno, fault.kind)
            raise OSError(code, os.strerror(code), path)
        if fault.kind == "kill":
            kill_self()
        if fault.kind == "hold":
            Path(f"{fault.release}.held").touch()
            while not fault.release.exists():
                threading.Event().wait(0.005)
        return fault.kind

    def _on_path(self, call: str) -> Callable[..., Any]:
        def replaced(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(self._directory):
                self._reaches(call, str(path))
            return self._real[call](path, *args, **kwargs)

        return replaced

    def _on_open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        ours = str(path).startswith(self._directory)
        if ours and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._reaches("open", str(path))
        descriptor: int = self._real["open"](path, flags, *args, **kwargs)
        if ours:
            self._open[descriptor] = str(path)
        return descriptor

    def _on_close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._real["close"](descriptor)

    def _on_fsync(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._reaches("fsync", self._open[descriptor])
        self._real["fsync"](descriptor)

    def _on_pwritev(self, descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        happens = ""
        if descriptor in self._open:
            happens = self._reaches("pwritev", self._open[descriptor])
        if happens in ("short", "torn"):
            content = b"".join(buffers)
            buffers = [content[: max(1, len(content) // 2)]]
        count: int = self._real["pwritev"](descriptor, buffers, offset, flags)
        self.written += count
        if happens == "torn":
            kill_self()
        return count
