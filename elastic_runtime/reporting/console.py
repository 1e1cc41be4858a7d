"""What this process shows to people: written by a thread of its own, so that only that can hang.

A terminal is stopped with Ctrl-S, an ssh freezes, a ``tee`` or a collector of logs no longer reads:
whoever writes there waits, for hours if need be. An agent must not: it would lose its lease, and
hear no signal. So its workers' output, its events and its last words all go through a ``Console``.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakValueDictionary

from elastic_runtime.reporting.json_lines import AGENT_LINE, LineEvents
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

_CHUNK = 1 << 16
# What a disk says that is full at the moment; any other error means that nobody reads any more.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# How an event begins in JSON.
_EVENT = b'{"timestamp": '
# So long the end of a process waits for a console that takes nothing, in seconds.
_LAST_PATIENCE = 2.0


class Console:
    """A file descriptor to people, written to by a thread of its own, so that only that can hang.

    Args:
        descriptor: duplicated; the original may be closed.
        relieved: called from the writing thread when there is space again after ``full``.
        limit: bytes waiting beyond which it is full.
        patience: seconds without any progress after which it counts as stuck, and output for it
            is dropped until it moves again.

    Attributes:
        only_events: each of its lines is to be one event in JSON; whoever writes sees to that.
    """

    def __init__(
        self,
        descriptor: int,
        relieved: Callable[[], None] = lambda: None,
        limit: int = 1 << 22,
        patience: float = 5.0,
    ) -> None:
        self._descriptor = os.dup(descriptor)
        self.only_events = False
        self._turn = _turn_at(self._descriptor)
        self._relieved = relieved
        self._limit = limit
        self._patience = patience
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._moved = time.monotonic()
        self._unfinished: object = None
        self._gone = False
        self._closing = False
        self._was_full = False
        # Signals are for the other threads: some of them wait for one, having it blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread = threads.spawn(self._write_all, name="elastic-console")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def write(self, owner: object, prefix: bytes, text: bytes) -> None:
        """Shows lines, each with the prefix; the last one may be unfinished.

        Args:
            owner: whose they are: an unfinished line is continued by its owner, and broken by a
                newline when somebody else has something to say.
            prefix: put before each line.
            text: not empty.
        """
        with self._changed:
            if self._gone:
                return
            if self._size > self._limit and self._is_stuck():
                self._dropped += len(text)
                return
            continued = self._unfinished is owner
            start = b"" if continued else prefix
            if self._unfinished is not None and not continued:
                start = b"\n" + prefix
            ends = text.endswith(b"\n")
            body = text[:-1] if ends else text
            shown = start + body.replace(b"\n", b"\n" + prefix) + (b"\n" if ends else b"")
            self._unfinished = None if ends else owner
            if not self._size:
                self._moved = time.monotonic()  # it had nothing to do until now
            self._put(shown)

    def end_line(self, owner: object) -> None:
        """Ends the line that the owner has left unfinished, if there is one."""
        with self._changed:
            if self._unfinished is owner and not self._gone:
                self._unfinished = None
                self._put(b"\n")

    @property
    def full(self) -> bool:
        """More is waiting than should be, and it still moves: workers ought to wait."""
        with self._changed:
            self._was_full = self._size > self._limit and not self._gone and not self._is_stuck()
            return self._was_full

    def flush(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds for everything to be written; false if it was not."""
        with self._changed:
            return self._changed.wait_for(lambda: self._size == 0 or self._gone, timeout)

    def close(self) -> None:
        """Writes what is waiting, for as long as that gets on."""
        with self._changed:
            while self._size and not self._gone and not self._is_stuck():
                self._changed.wait(self._patience)
            self._closing = True
            self._changed.notify_all()

    def _is_stuck(self) -> bool:
        return time.monotonic() - self._moved > self._patience

    def _put(self, text: bytes) -> None:
        self._waiting.append(text)
        self._size += len(text)
        self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                text = self._waiting.popleft()
            with self._turn:
                self._write_one(text)
        os.close(self._descriptor)

    def _write_one(self, text: bytes) -> None:
        view = memoryview(text)
        while view:
            try:
                written = os.write(self._descriptor, view[: _piece(text, len(text) - len(view))])
            except BlockingIOError:  # somebody else has made our terminal non-blocking
                select.select([], [self._descriptor], [])
                continue
            except OSError as error:
                with self._changed:
                    self._lose(len(view), gone=error.errno not in _FULL)
                return
            view = view[written:]
            with self._changed:
                self._size -= written
                self._after_progress()

    def _lose(self, size: int, *, gone: bool) -> None:
        """Does without some bytes; with all the others as well if the reader is gone."""
        self._size -= size
        self._dropped += size
        if gone:
            self._gone = True
            self._waiting.clear()
            self._size = 0
        self._make_room()

    def _after_progress(self) -> None:
        self._moved = time.monotonic()
        if self._dropped and self._size < self._limit:
            why = f"the console was stuck or full: {self._dropped} bytes were not shown"
            note = f"[elastic-run] {why}\n".encode()
            self._dropped = 0
            self._unfinished = None
            self._put(b"\n" + (LineEvents(AGENT_LINE)(note) if self.only_events else note))
        self._make_room()

    def _make_room(self) -> None:
        if self._was_full and self._size < self._limit // 2:
            self._was_full = False
            self._relieved()
        self._changed.notify_all()


def _piece(text: bytes, start: int) -> int:
    """How much of a text to write at once: lines that are whole, if they are short enough.

    A pipe takes so much without anything of another process's in between.
    """
    end = text.rfind(b"\n", start, start + select.PIPE_BUF) + 1
    return end - start if end else _CHUNK


# Whose turn it is to write to a place: two consoles of a process may lead there.
_TURNS: WeakValueDictionary[tuple[int, int, int], threading.Lock] = WeakValueDictionary()


def _turn_at(descriptor: int) -> threading.Lock:
    place = os.fstat(descriptor)
    return _TURNS.setdefault((place.st_dev, place.st_ino, place.st_rdev), threading.Lock())


def open_consoles(
    stdout: int, stderr: int, relieved: Callable[[], None] = lambda: None
) -> dict[str, Console]:
    """Makes the consoles of a process: one, if both descriptors lead to the same place.

    One place needs one order of lines, and one idea of which line is unfinished.

    Args:
        stdout, stderr: descriptors; what is sent to one that is closed goes nowhere.
        relieved: see ``Console``.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    out, err = (fd if _is_open(fd) else null for fd in (stdout, stderr))
    first = Console(out, relieved)
    second = first if _same_file(out, err) else Console(err, relieved)
    os.close(null)
    return {"stdout": first, "stderr": second}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return os.path.samestat(first, second) and first.st_rdev == second.st_rdev


class _Through(io.RawIOBase):
    """The file under a text stream whose bytes go to a console."""

    def __init__(self, console: Console, descriptor: int) -> None:
        self._console = console
        self._descriptor = descriptor
        self._begun = b""

    def write(self, data: Buffer, /) -> int:
        text = bytes(data)
        if self._console.only_events and not text.startswith(_EVENT):
            whole, newline, self._begun = (self._begun + text).rpartition(b"\n")
            self._write(as_events(whole + newline))
        else:
            self._write(text)
        return len(text)

    def finish(self) -> None:
        """Writes what was meant for an event and has no end of line."""
        self._write(as_events(self._begun))
        self._begun = b""

    def only_events(self) -> None:
        self._console.only_events = True

    def _write(self, text: bytes) -> None:
        if text:
            self._console.write(self, b"", text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


def as_events(text: bytes, **fields: Any) -> bytes:
    """Lines, those that are no events already as such: pure.

    Args:
        text: some lines; the last one may be unfinished.
        **fields: whose lines they are, for the events that are made of some.
    """
    said = LineEvents(AGENT_LINE, fields)
    lines = text.splitlines(keepends=True)
    return b"".join(line if line.startswith(_EVENT) else said(line) for line in lines)


def show_only_events(stream: TextIO) -> None:
    """Has each line of a stream be an event from now on, whoever writes it.

    Args:
        stream: of ``unblocked``; another one stays as it is.
    """
    through = getattr(stream, "buffer", None)
    if isinstance(through, _Through):
        through.only_events()


@contextmanager
def unblocked(stream: TextIO) -> Iterator[TextIO]:
    """A stream that leads to the same place, and on which nobody ever waits or fails.

    What is written there is shown in order by a thread. The end of the block waits for that as
    long as it gets on.

    Args:
        stream: such as ``sys.stderr``; handed back as it is if there is no descriptor behind it,
            or if it is such a stream already.
    """
    through = getattr(stream, "buffer", None)
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        descriptor = -1
    if isinstance(through, _Through) or descriptor < 0:
        yield stream
        return
    console = Console(descriptor, patience=_LAST_PATIENCE)
    through = _Through(console, descriptor)
    try:
        yield io.TextIOWrapper(
            through,  # type: ignore[type-var]
            encoding=stream.encoding,
            errors="backslashreplace",
            write_through=True,
        )
    finally:
        through.finish()
        console.close()


def open_missing() -> None:
    """Opens the null device where one of the descriptors 0 to 2 is closed, and fills in ``sys``.

    To be called before anything else is opened: the first socket of a process that was started with
    ``>&-`` would be its standard output, and take all that is meant for people.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        place: int | str = os.devnull  # if somebody else has the number already
        if not _is_open(descriptor):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)
            if null != descriptor:
                os.close(null)
            os.set_inheritable(descriptor, True)  # our children have the same need
            place = descriptor
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            stream = open(place, mode, errors="backslashreplace", closefd=place == os.devnull)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def mute(stream: TextIO) -> None:
    """Drops what is left in a stream's buffer, after it could not be written.

    The interpreter writes out at its end what is left in a buffer, and exits with a code of its own
    if that fails.
    """
    with suppress(OSError, ValueError):  # without a descriptor there is nothing left
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
