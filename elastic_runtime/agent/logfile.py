"""Workers' log files, written by a thread of the agent's, so that only that can hang.

No worker ever hears of a full disk: what cannot be written is dropped, which is said once, and the
file goes on when there is room again.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_runtime import threads
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Between two attempts at a file that could not be written, in seconds.
_AGAIN = 1.0
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogFile:
    """One file, that a ``LogWriter`` appends to.

    Args:
        writer: the one.
        path: where it is.

    Raises:
        UsageError: it cannot be made, and not because the disk is full.
    """

    def __init__(self, writer: LogWriter, path: str) -> None:
        self.path = path
        self.dropped = 0  # bytes, since it could last be written
        self.retry_at = 0.0
        self.closed = threading.Event()
        self._writer = writer
        self._descriptor: int | None = None
        try:
            self._open()
        except OSError as error:
            if error.errno not in FULL:
                text = f"the log file {path} cannot be written: {error.strerror}"
                raise UsageError(text) from None

    def write(self, data: bytes) -> None:
        """Has data appended."""
        self._writer.put(self, data)

    def close(self) -> None:
        """Has it closed, after all that was to be written before."""
        self._writer.put(self, None)

    @property
    def full(self) -> bool:
        """More is waiting to be written than should be: its worker ought to wait."""
        return self._writer.full

    def append(self, data: bytes) -> int:
        """Writes, for the writing thread.

        Returns:
            How many bytes could be written.

        Raises:
            OSError: not all of them.
        """
        view = memoryview(data)
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        try:
            if self.dropped:
                note = f"\n[elastic-run] {self.dropped} bytes could not be written here\n"
                os.write(self._descriptor, note.encode())
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.dropped += len(view)
            raise
        self.dropped = 0
        return len(data)

    def end(self) -> None:
        """Closes it, for the writing thread."""
        if self._descriptor is not None:
            with suppress(OSError):  # of a network file system, that has waited until now
                os.close(self._descriptor)
            self._descriptor = None
        self.closed.set()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o644)


class LogWriter:
    """Appends to all log files of an agent.

    Args:
        tell: called from the writing thread with an event's name and fields, when a file cannot be
            written while all others can, and when all can be written again.
        relieved: called from there when there is room again after ``full``.
        limit: bytes waiting beyond which it is full.
        patience: seconds without any progress after which it counts as stuck, and what comes is
            dropped until it moves again.
    """

    def __init__(
        self,
        tell: Callable[[str, dict[str, object]], None] = lambda *_: None,
        relieved: Callable[[], None] = lambda: None,
        limit: int = 1 << 23,
        patience: float = 5.0,
    ) -> None:
        self._tell = tell
        self._relieved = relieved
        self._limit = limit
        self._patience = patience
        self._changed = threading.Condition()
        self._waiting: deque[tuple[LogFile, bytes | None]] = deque()
        self._size = 0
        self._moved = 0.0
        self._was_full = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failing: set[LogFile] = set()
        self._lost = 0  # bytes, since the first of those failed

    def open(self, path: str) -> LogFile:
        """Opens a file for appending.

        Raises:
            UsageError: it cannot be made, and not because the disk is full.
        """
        if self._thread is None:
            self._thread = threads.spawn(self._write_all, name="elastic-logs")
        return LogFile(self, path)

    def put(self, file: LogFile, data: bytes | None) -> None:
        """Has data appended to a file; None: has it closed."""
        with self._changed:
            if data is not None and self._size > self._limit and self._is_stuck():
                file.dropped += len(data)
                return
            if not self._waiting:
                self._moved = time.monotonic()  # it had nothing to do until now
            self._waiting.append((file, data))
            self._size += len(data or b"")
            self._changed.notify_all()

    @property
    def full(self) -> bool:
        """More is waiting than should be, and it still moves."""
        with self._changed:
            self._was_full = self._size > self._limit and not self._is_stuck()
            return self._was_full

    def flush(self, files: Iterable[LogFile], timeout: float) -> None:
        """Waits up to ``timeout`` seconds until files that are to be closed are."""
        deadline = time.monotonic() + timeout
        for file in files:
            file.closed.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Writes what is waiting, for as long as that gets on."""
        with self._changed:
            while self._waiting and not self._is_stuck():
                self._changed.wait(self._patience)
            self._closing = True
            self._changed.notify_all()

    def _is_stuck(self) -> bool:
        return time.monotonic() - self._moved > self._patience

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                file, data = self._waiting[0]
            if data is None:
                file.end()
                self._failing.discard(file)
            else:
                self._write(file, data)
            with self._changed:
                self._waiting.popleft()
                self._size -= len(data or b"")
                self._moved = time.monotonic()
                relieved = self._was_full and self._size < self._limit // 2
                self._was_full = self._was_full and not relieved
                self._changed.notify_all()
            if relieved:
                self._relieved()

    def _write(self, file: LogFile, data: bytes) -> None:
        now = time.monotonic()
        if file in self._failing and now < file.retry_at:
            file.dropped += len(data)
            self._lost += len(data)
            return
        before = file.dropped
        try:
            file.append(data)
        except OSError as error:
            self._lost += max(0, file.dropped - before)
            file.retry_at = now + _AGAIN
            if not self._failing:
                self._tell("log.dropped", {"path": file.path, "why": error.strerror or str(error)})
            self._failing.add(file)
        else:
            self._recovered(file)

    def _recovered(self, file: LogFile) -> None:
        if file in self._failing:
            self._failing.discard(file)
            if not self._failing:
                self._tell("log.resumed", {"path": file.path, "bytes": self._lost})
                self._lost = 0
