"""Workers' log files, made and written by a thread of the agent's, so that only that can hang.

A log disk that is full or fails has no effect on workers: what cannot be written is dropped, which
is reported once, and the file is continued when it can be written again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.events import silent
from elastic_runtime.events.log_events import LogDropped, LogResumed
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from elastic_runtime.events import Event
    from elastic_runtime.events.log_events import WriteFailed, WriteResumed

# Between two attempts at a file that could not be written, in seconds.
_AGAIN = 1.0


_Job = Callable[[], None]


class LogFile:
    """One file, that a ``LogWriter`` appends to.

    Args:
        writer: the one.
        where: tells its path, once its directory is there; called by the writing thread. It may
            raise OSError, and is asked again then.
    """

    def __init__(self, writer: LogWriter, where: Callable[[], str]) -> None:
        self.path = ""  # until it is known
        self.dropped = 0  # bytes, since it could last be written
        self.retry_at = 0.0
        self._writer = writer
        self._where = where
        self._descriptor: int | None = None

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
        try:
            if self._descriptor is None:
                self._descriptor = self._opened()
            if self.dropped:
                note = f"\n[elastic-run] {self.dropped} bytes could not be written here\n"
                os.write(self._descriptor, note.encode())
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.dropped += len(view)
            self._close()  # a handle can be stale; the file is opened again
            raise
        self.dropped = 0
        return len(data)

    def end(self) -> None:
        """Closes it, for the writing thread."""
        self._close()

    def _opened(self) -> int:
        self.path = self._where()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path, flags, 0o644)

    def _close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # of a network file system, that has waited until now
                os.close(self._descriptor)
            self._descriptor = None


class LogWriter:
    """Makes all log files of an agent, and appends to them, in a thread of its own.

    Args:
        emit: called from the writing thread, when a file cannot be written while all others can,
            and when all can be written again.
        relieved: called from there when there is space again after ``full``.
        limit: bytes waiting beyond which it is full.
        patience: seconds without any progress after which it counts as stuck, and what comes is
            dropped until it moves again.
        dropped, resumed: what is emitted, of the kind of these files.
    """

    def __init__(
        self,
        emit: Callable[[Event], None] = silent,
        relieved: Callable[[], None] = lambda: None,
        limit: int = 1 << 23,
        patience: float = 5.0,
        dropped: type[WriteFailed] = LogDropped,
        resumed: type[WriteResumed] = LogResumed,
    ) -> None:
        self._emit = emit
        self._dropped_event, self._resumed_event = dropped, resumed
        self._relieved = relieved
        self._limit = limit
        self._patience = patience
        self._changed = threading.Condition()
        self._waiting: deque[tuple[_Job, int]] = deque()  # what is to be done, and its bytes
        self._size = 0
        self._moved = 0.0
        self._was_full = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failing: set[LogFile] = set()
        self._refused = False  # the last of what ``call`` was given has failed
        self._lost = 0  # bytes, since the first of those failed

    def open(self, where: Callable[[], str]) -> LogFile:
        """Has a file made, if it is not there, to which can be appended.

        Args:
            where: see ``LogFile``.
        """
        file = LogFile(self, where)
        self.put(file, b"")
        return file

    def put(self, file: LogFile, data: bytes | None) -> None:
        """Has data appended to a file; None: has it closed."""
        with self._changed:
            if data and self._size > self._limit and self._is_stuck():
                file.dropped += len(data)
                return
            job = partial(self._end, file) if data is None else partial(self._write, file, data)
            self._enqueue(job, len(data or b""))

    def call(self, job: Callable[[], None]) -> None:
        """Has something else done to where the files lie, after all that was asked for before.

        Args:
            job: may raise OSError, which is reported as for a file that cannot be written.
        """
        with self._changed:
            self._enqueue(partial(self._try, job), 0)

    def _enqueue(self, job: _Job, size: int) -> None:
        if self._thread is None:
            self._thread = threads.spawn(self._write_all, name="elastic-logs")
        if not self._waiting:
            self._moved = time.monotonic()  # it had nothing to do until now
        self._waiting.append((job, size))
        self._size += size
        self._changed.notify_all()

    @property
    def full(self) -> bool:
        """More is waiting than should be, and it still moves."""
        with self._changed:
            self._was_full = self._size > self._limit and not self._is_stuck()
            return self._was_full

    def flush(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds until all that was asked for is done, and told.

        Returns:
            Whether it is.
        """
        with self._changed:
            if not self._waiting:
                return True
            done = threading.Event()
            self._enqueue(done.set, 0)
        return done.wait(timeout)

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
                job, size = self._waiting[0]
            job()
            with self._changed:
                self._waiting.popleft()
                self._size -= size
                self._moved = time.monotonic()
                relieved = self._was_full and self._size < self._limit // 2
                self._was_full = self._was_full and not relieved
                self._changed.notify_all()
            if relieved:
                self._relieved()

    def _end(self, file: LogFile) -> None:
        file.end()
        self._failing.discard(file)

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
            self._failed(error, file.path)
            self._failing.add(file)
        else:
            if file in self._failing:
                self._failing.discard(file)
                self._recovered(file.path)

    def _try(self, job: _Job) -> None:
        try:
            job()
        except OSError as error:
            self._failed(error, "")
            self._refused = True
        else:
            if self._refused:
                self._recovered("")

    def _failed(self, error: OSError, path: str) -> None:
        if not self._failing and not self._refused:
            path = str(error.filename or path)
            self._emit(self._dropped_event(path, error.strerror or str(error)))

    def _recovered(self, path: str) -> None:
        # A file that was not written to since is no reason to report the problem still.
        if not any(file.dropped for file in self._failing):
            self._failing.clear()
            self._refused = False
            self._emit(self._resumed_event(path, self._lost))
            self._lost = 0
