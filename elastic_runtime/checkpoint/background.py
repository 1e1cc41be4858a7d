"""A thread beside training that does one thing at a time."""

from __future__ import annotations

import threading
import time
import traceback
from math import inf
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.errors import CheckpointError, CheckpointFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

T = TypeVar("T")

_LOOK = 0.05  # seconds between two looks at whether waiting still makes sense


class Abandoned(Exception):
    """Nobody wants the result of this any more."""


class Task:
    """Something that is being done.

    Attributes:
        error: why it failed, once it has ended.
    """

    def __init__(self, thread: Executor, work: Callable[[Task], None]) -> None:
        """Begins, once what the thread was given before has ended.

        Args:
            thread: does it. An executor's thread is there already, so that this call does not wait
                for one to start, and a program that comes to its end waits for it: its last
                checkpoint is finished.
            work: gets this task, and calls its ``check`` now and then.
        """
        self.error: Exception | None = None
        self._abandoned = threading.Event()
        self._ended = threading.Event()
        thread.submit(self._run, work)

    def _run(self, work: Callable[[Task], None]) -> None:
        try:
            work(self)
        except Exception as error:
            _let_go(error)
            self.error = error
        finally:
            self._ended.set()

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
