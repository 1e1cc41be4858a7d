"""Waits for the first answer of an object store, of which nobody knows yet if it is there.

An address that is wrong and a store that is away look the same. So whoever sits in front of a
terminal is told soon; a job goes on asking, as what is away comes back, and says so meanwhile.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import tenacity

from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.events.event import NotedEvent

_T = TypeVar("_T")
_Answer = tuple[_T | None, BaseException | None]

# Seconds until it is said for the first time that there is no answer, and between any two times.
_FIRST_WORD = 5.0
_NEXT_WORD = 30.0
# How often it looks whether this process was asked to leave.
_LOOKS = 0.2


class FirstContactTimeout(Exception):
    """There was none in time; ``__cause__`` is the last error, if there was any."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store is asked that has never answered.

    Attributes:
        seconds: as long as that.
        note: takes an event, time and again, while there is no answer: of a job, for which that may
            pass. None: it is a person who waits, and hears at the end that the address is wrong.
        leave: called time and again; ends this process if it was asked to leave, as there is
            nothing to be saved yet.
    """

    seconds: float = 20.0
    note: Callable[[NotedEvent], None] | None = None
    leave: Callable[[], None] = lambda: None


def of_a_job(note: Callable[[NotedEvent], None], leave: Callable[[], None]) -> Patience:
    """That of a job: as long as a job waits for its nodes, as its restarts are few."""
    return Patience(600.0, note, leave)


def ask(
    call: Callable[[], _T],
    seconds: float,
    tell: Callable[[BaseException | None, float], None] | None,
    may_pass: Callable[[BaseException], bool],
    wait: tenacity.wait.wait_base,
    leave: Callable[[], None],
) -> _T:
    """Asks until there is an answer.

    In a thread of its own: the libraries of the stores try again as well, for minutes.

    Args:
        call: asks once.
        seconds: for how long.
        tell: takes the last error, None if there was only silence, and for how many seconds the
            store has been asked; called time and again.
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
    due = _FIRST_WORD if tell is not None else seconds
    while True:
        try:
            left = begun + min(due, seconds) - time.monotonic()
            value, error = answers.get(timeout=max(0.0, min(left, _LOOKS)))
            break
        except queue.Empty:
            leave()
            if left > _LOOKS:
                continue
            why = last[-1] if last else None
            if tell is None or due >= seconds:
                raise FirstContactTimeout from why
            tell(why, time.monotonic() - begun)
            due += _NEXT_WORD
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
