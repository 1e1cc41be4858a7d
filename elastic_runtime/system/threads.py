"""Supervised threads: an unexpected end of one is reported.

A thread that ends with an unexpected exception leaves the rest of its process running: an agent
that renews its lease and answers, and no longer decides anything. So every thread of an agent is
started here, and what it does not catch itself is handed to a watcher: the agent, which then ends,
and lets the others continue without it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_watchers: list[Callable[[Crash], None]] = []
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Crash:
    """An unexpected exception.

    Attributes:
        thread: the name of the thread that it ended.
        error: its type and text, on one line.
        trace: its traceback.
    """

    thread: str
    error: str
    trace: str

    @classmethod
    def of(cls, thread: str, error: BaseException) -> Crash:
        """The crash that this exception is."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(thread, text[:500], "".join(traceback.format_exception(error)))


def spawn(target: Callable[..., object], *args: Any, name: str) -> threading.Thread:
    """Starts a daemon thread that is watched.

    Args:
        target: what it does; it may return when it is through.
        *args: for the target.
        name: of the thread, for people.

    Raises:
        RuntimeError: the system allows no further thread.
    """
    thread = threading.Thread(target=_run, args=(target, args), name=name, daemon=True)
    thread.start()
    return thread


def _run(target: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        target(*args)
    except Exception as error:
        if not report_crash(error):
            raise


def report_crash(error: BaseException) -> bool:
    """Hands an unexpected exception in the present thread to the watcher.

    For loops that catch what their callbacks raise, and continue.

    Returns:
        Whether there is a watcher.
    """
    crash = Crash.of(threading.current_thread().name, error)
    with _lock:
        watchers = list(_watchers)
    for watcher in watchers:
        watcher(crash)
    return bool(watchers)


def watch(watcher: Callable[[Crash], None]) -> Callable[[], None]:
    """Has ``watcher`` called with each crash, in the thread that crashed.

    Args:
        watcher: must not block; called once for each crash.

    Returns:
        What ends it.
    """
    with _lock:
        _watchers.append(watcher)

    def end() -> None:
        with _lock:
            if watcher in _watchers:
                _watchers.remove(watcher)

    return end


def write_down(crash: Crash, directory: str = "") -> str:
    """Writes a crash to a file of its own that only this user can read.

    Args:
        crash: the crash.
        directory: where; "": where temporary files are kept.

    Returns:
        Its path; "" if it could not be written.
    """
    try:
        if directory:
            os.makedirs(directory, exist_ok=True)
        descriptor, path = tempfile.mkstemp(".txt", "elastic-crash-", directory or None)
        with open(descriptor, "w") as file:
            file.write(f"thread {crash.thread} of process {os.getpid()}\n\n{crash.trace}")
    except OSError:
        return ""
    return path
