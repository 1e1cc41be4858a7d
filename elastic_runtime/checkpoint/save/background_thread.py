"""A thread beside training that runs one task after the other, and what ends with the program."""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
import weakref
from math import inf
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.errors import CheckpointError, CheckpointFailed
from elastic_runtime.limits import ABANDONED_TASKS_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_LOOK = 0.05  # seconds between two looks at whether waiting still makes sense


class Abandoned(Exception):
    """The task was given up: its result is not needed any longer."""


class BackgroundThread:
    """A thread that does what it is given, one after the other.

    It is there already when it is given something for the second time. An executor's thread would
    be waited for in any case when the program ends, for half an hour if it stands still in gloo.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, work: Callable[[], None]) -> None:
        """Has something done after all that was given before."""
        if self._thread is None:
            thread = threading.Thread(
                target=_do_all, args=(self._given,), name=self._name, daemon=True
            )
            thread.start()
            self._thread = thread
            weakref.finalize(self, self._given.put, None)
        self._given.put(work)


def _do_all(given: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := given.get()) is not None:
        work()
        del work  # what it holds is not needed until the next one comes


class _ExitGuard:
    """Keeps a program alive at its end until its saves are done: a thread that is no daemon."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: set[Task] = set()
        self._thread: threading.Thread | None = None

    def add(self, task: Task) -> None:
        """Something is under way."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._keep, name="elastic-keep")
                thread.start()
                self._thread = thread
            self._tasks.add(task)

    def remove(self, task: Task) -> None:
        """It has ended."""
        with self._changed:
            self._tasks.discard(task)
            self._changed.notify_all()

    def look(self) -> None:
        """One of them is not wanted any longer."""
        with self._changed:
            self._changed.notify_all()

    def _keep(self) -> None:
        threading.main_thread().join()
        with self._changed:
            self._changed.wait_for(lambda: not any(task.is_wanted for task in self._tasks))
            self._changed.wait_for(lambda: not self._tasks, ABANDONED_TASKS_TIMEOUT)


_exit_guard = _ExitGuard()
# What a parent has under way, its child has not, nor has it the thread.
os.register_at_fork(after_in_child=_exit_guard.__init__)  # type: ignore[misc]


class Task:
    """Something that is being done.

    Attributes:
        error: why it failed, once it has ended.
    """

    def __init__(
        self, thread: BackgroundThread, work: Callable[[Task], None], *, wanted: bool = True
    ) -> None:
        """Begins, once what the thread was given before has ended.

        Args:
            thread: does it.
            work: gets this task, and calls its ``check`` now and then.
            wanted: a program that ends waits for it.

        Raises:
            RuntimeError: there is no room for another thread.
        """
        self._wanted = wanted
        self.error: Exception | None = None
        self._abandoned = threading.Event()
        self._ended = threading.Event()
        _exit_guard.add(self)
        try:
            thread.give(lambda: self._run(work))
        except BaseException:
            _exit_guard.remove(self)
            raise

    def _run(self, work: Callable[[Task], None]) -> None:
        try:
            work(self)
        except BaseException as error:  # the thread continues in any case
            _clear_frames(error)
            if not isinstance(error, Exception):
                error = CheckpointFailed(f"a save ended: {error!r}")
            self.error = error
        finally:
            self._ended.set()
            _exit_guard.remove(self)

    @property
    def is_wanted(self) -> bool:
        """Whether a program that ends waits until this has ended as well."""
        return self._wanted and not self._abandoned.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and not well."""
        return self._ended.is_set() and self.error is not None

    @property
    def has_ended(self) -> bool:
        """Whether it is over, one way or the other."""
        return self._ended.is_set()

    def check(self) -> None:
        """Called by what is being done.

        Raises:
            Abandoned: the result is not needed any longer.
        """
        if self._abandoned.is_set():
            raise Abandoned

    def abandon(self) -> None:
        """Has it end soon. What it uses is in use until it has ended."""
        self._abandoned.set()
        _exit_guard.look()

    def wait(self, give_up: Callable[[], None], patience: float = inf) -> bool:
        """Waits until it has ended, however it did.

        Args:
            give_up: called while waiting; raises if that makes no sense any longer.
            patience: seconds, at most.

        Returns:
            Whether it has ended.
        """
        until = time.monotonic() + patience
        while not self._ended.wait(min(_LOOK, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
            give_up()
        return True


def _clear_frames(error: BaseException) -> None:
    """Clears the frames that an error has passed through: they hold the groups of a round that is
    over, until garbage is collected."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__


def failing_for_all(action: Callable[[], T]) -> Callable[[], T]:
    """Turns any failure of an action into an error that is sent to all ranks, which wait for it.

    Returns:
        The same action, which raises nothing but ``CheckpointError`` and ``Abandoned``.
    """

    def do() -> T:
        try:
            return action()
        except (CheckpointError, Abandoned):
            raise
        except Exception as error:
            raise CheckpointFailed(
                f"a save failed: {error!r}; older checkpoints are untouched"
            ) from error

    return do
