"""The event loop, in a thread of its own, of all embedded stores and servers in this process."""

from __future__ import annotations

import asyncio
import errno
import resource
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

_T = TypeVar("_T")

# Seconds that the end of the thread is waited for.
_JOIN = 2.0


class Loop:
    """A reference to the loop; its thread ends when the last reference is released."""

    _lock = threading.Lock()
    _shares = 0
    _present: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def __init__(self) -> None:
        with Loop._lock:
            if Loop._present is None:
                loop = asyncio.new_event_loop()
                loop.set_exception_handler(_unexpected)
                Loop._present = loop
                Loop._thread = threads.spawn(_run, loop, name="embedded-store")
            Loop._shares += 1
            self.loop = Loop._present
            self._mine = Loop._thread
        self._released = False

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Runs a coroutine there and waits for its result; never call it on the loop's own thread.

        Raises:
            TimeoutError: it takes longer than ``timeout`` seconds; it is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Starts a coroutine there; an exception that it does not catch is reported as a defect."""
        return asyncio.run_coroutine_threadsafe(_watched(work), self.loop)

    def post(self, call: Callable[[], object]) -> None:
        """Calls a function there."""
        self.loop.call_soon_threadsafe(call)

    def release(self) -> None:
        """Releases the reference. Idempotent."""
        with Loop._lock:
            if self._released:
                return
            self._released = True
            Loop._shares -= 1
            if Loop._shares:
                return
            Loop._present, Loop._thread = None, None
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self._mine is not None and self._mine is not threading.current_thread():
            self._mine.join(_JOIN)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()


async def _watched(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await work
    except Exception as error:
        threads.report_crash(error)
        raise


def _unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception that no task caught: a defect, unless a client found no free descriptor."""
    error = context.get("exception")
    if isinstance(error, OSError):
        if error.errno == errno.EMFILE:
            _allow_more_files()  # asyncio accepts again after a second
    # asyncio of Python 3.11 tells that a client's task was cancelled, as it is at the end.
    elif error is not None and not isinstance(error, asyncio.CancelledError):
        threads.report_crash(error)


def _allow_more_files() -> None:
    """Raises our soft limit of open files (often 1024) to the hard one: each node needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
