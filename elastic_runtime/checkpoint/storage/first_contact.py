"""Waits for the first answer of an object store, which may not exist.

A wrong address and a store that is down look the same. So a person at a terminal gets an error
soon; a job keeps trying, as the store may come back, and reports that meanwhile.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import tenacity

from elastic_runtime.limits import (
    FIRST_STORAGE_REPORT,
    FIRST_STORAGE_TIMEOUT,
    FIRST_STORAGE_TIMEOUT_OF_COMMANDS,
    NEXT_STORAGE_REPORT,
)
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.events.event import NotedEvent

_T = TypeVar("_T")
_Answer = tuple[_T | None, BaseException | None]

# Seconds between two checks whether this process was asked to stop.
_CHECK_EVERY = 0.2


class FirstContactTimeout(Exception):
    """There was no answer in time; ``__cause__`` is the last error, if there was any."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a store that has never answered.

    Attributes:
        seconds: for how long.
        note: for a job: takes an event now and then while there is no answer. None: a person
            waits, who gets an error at the end.
        leave: called often; ends this process if it was asked to stop, as there is nothing to be
            saved yet.
    """

    seconds: float = FIRST_STORAGE_TIMEOUT_OF_COMMANDS
    note: Callable[[NotedEvent], None] | None = None
    leave: Callable[[], None] = lambda: None


def of_a_job(note: Callable[[NotedEvent], None], leave: Callable[[], None]) -> Patience:
    """The patience of a job."""
    return Patience(FIRST_STORAGE_TIMEOUT, note, leave)


def ask_storage(
    call: Callable[[], _T],
    seconds: float,
    report: Callable[[BaseException | None, float], None] | None,
    may_pass: Callable[[BaseException], bool],
    wait: tenacity.wait.wait_base,
    leave: Callable[[], None],
) -> _T:
    """Asks until there is an answer.

    In a thread of its own: the libraries of the stores try again as well, for minutes.

    Args:
        call: asks once.
        seconds: for how long.
        report: takes the last error, None if there was none, and for how many seconds the store
            has not answered; called now and then. None: nothing is reported.
        may_pass: whether another try may do better after an error.
        wait: the pauses between two tries.
        leave: as in ``Patience``.

    Returns:
        The answer.

    Raises:
        FirstContactTimeout: there was none in time.
        Exception: what ``call`` has raised, if that does not pass.
    """
    begun = time.monotonic()
    answers, last = _asking(call, seconds, may_pass, wait)
    due = FIRST_STORAGE_REPORT if report is not None else seconds
    while True:
        try:
            left = begun + min(due, seconds) - time.monotonic()
            value, error = answers.get(timeout=max(0.0, min(left, _CHECK_EVERY)))
            break
        except queue.Empty:
            leave()
            if left > _CHECK_EVERY:
                continue
            why = last[-1] if last else None
            if report is None or due >= seconds:
                raise FirstContactTimeout from why
            report(why, time.monotonic() - begun)
            due += NEXT_STORAGE_REPORT
    if error is None:
        return cast("_T", value)
    if may_pass(error):
        raise FirstContactTimeout from error
    raise error


def _asking(
    call: Callable[[], _T],
    seconds: float,
    may_pass: Callable[[BaseException], bool],
    wait: tenacity.wait.wait_base,
) -> tuple[queue.SimpleQueue[_Answer[_T]], list[Exception]]:
    """Asks in a thread; returns where the answer will be, and the errors so far."""
    answers: queue.SimpleQueue[_Answer[_T]] = queue.SimpleQueue()
    last: list[Exception] = []

    def once() -> _T:
        try:
            return call()
        except Exception as error:
            last.append(error)
            raise

    def go_on() -> None:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(seconds),
            wait=wait,
            retry=tenacity.retry_if_exception(may_pass),
            reraise=True,
        )
        try:
            answers.put((retrying(once), None))
        except BaseException as error:
            answers.put((None, error))

    threads.spawn(go_on, name="elastic-first-contact")
    return answers, last
