"""A thread beside training that does one thing at a time."""

from __future__ import annotations

import queue
import threading
import time
import traceback
import weakref
from math import inf
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.errors import CheckpointError, CheckpointFailed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_LOOK = 0.05  # seconds between two looks at whether waiting still makes sense


class Abandoned(Exception):
    """Nobody wants the result of this any more."""


class Line:
    """A thread that does what it is given, one after the other.

    It is there already when it is given something for the second time. A program that comes to its
    end waits for what somebody still wants, so that its last checkpoint is finished: neither a
    daemon's end nor that of an executor's thread, which is waited for in any case, would do.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, work: Callable[[], None]) -> None:
        """Has something done after all that was given before."""
        self._given.put(work)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_do_all, args=(self._given,), name=self._name, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._given.put, None)


def _do_all(given: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := given.get()) is not None:
        work()
        del work  # what it holds is not needed until the next one comes


class _Wanted:
    """The tasks of this process that have not ended and that somebody waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: set[Task] = set()
        self._keeper: threading.Thread | None = None

    def add(self, task: Task) -> None:
        with self._changed:
            self._tasks.add(task)
            if self._keeper is None or not self._keeper.is_alive():  # in a forked process
                self._keeper = threading.Thread(target=self._keep, name="elastic-keep")
                self._keeper.start()

    def remove(self, task: Task) -> None:
        with self._changed:
            self._tasks.discard(task)
            self._changed.notify_all()

    def _keep(self) -> None:
        """Keeps the process alive: the interpreter waits for a thread that is no daemon."""
        threading.main_thread().join()
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks)


_wanted = _Wanted()


class Task:
    """Something that is being done.

    Attributes:
        error: why it failed, once it has ended.
    """

    def __init__(self, line: Line, work: Callable[[Task], None]) -> None:
        """Begins, once what the line was given before has ended.

        Args:
            line: does it.
            work: gets this task, and calls its ``check`` now and then.
        """
        self.error: Exception | None = None
        self._abandoned = threading.Event()
        self._ended = threading.Event()
        _wanted.add(self)
        line.give(lambda: self._run(work))

    def _run(self, work: Callable[[Task], None]) -> None:
        try:
            work(self)
        except Exception as error:
            _let_go(error)
            self.error = error
        finally:
            self._ended.set()
            _wanted.remove(self)

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
            Abandoned: nobody wants the result any more.
        """
        if self._abandoned.is_set():
            raise Abandoned

    def abandon(self) -> None:
        """Has it end soon. What it uses is in use until it has ended."""
        self._abandoned.set()
        _wanted.remove(self)

    def wait(self, give_up: Callable[[], None], patience: float = inf) -> bool:
        """Waits until it has ended, however it did.

        Args:
            give_up: called while waiting; raises if that makes no sense any more.
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


def _let_go(error: BaseException) -> None:
    """Clears the frames that an error has passed through: they hold the groups of a round that is
    over, until somebody collects garbage."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__


def told(action: Callable[[], T]) -> Callable[[], T]:
    """Has all ranks hear of any failure of an action: they wait for this one.

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
