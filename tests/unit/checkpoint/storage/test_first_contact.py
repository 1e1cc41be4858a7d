"""The wait for the first answer of a store: what ends it, and what is said meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import pytest
import tenacity

from elastic_runtime.checkpoint.storage import first_contact
from elastic_runtime.checkpoint.storage.first_contact import FirstContactTimeout, ask_storage

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# Longer than any test may take: what depends on the end of the wait gives a short one.
_LONG = 60.0


def _nothing() -> None:
    pass


def _ask(
    call: Callable[[], _T],
    seconds: float = _LONG,
    report: Callable[[BaseException | None, float], None] | None = None,
    may_pass: Callable[[BaseException], bool] = lambda error: isinstance(error, OSError),
    leave: Callable[[], None] = _nothing,
) -> _T:
    return ask_storage(call, seconds, report, may_pass, tenacity.wait_none(), leave)


def test_what_may_pass_is_asked_again_until_there_is_an_answer() -> None:
    errors = [OSError("down"), OSError("still down")]

    def call() -> str:
        if errors:
            raise errors.pop()
        return "here"

    assert _ask(call) == "here"
    assert errors == []


def test_no_value_is_an_answer_too() -> None:
    assert _ask(lambda: None) is None


def test_what_does_not_pass_is_raised_as_it_is_after_one_try() -> None:
    asked = []

    def call() -> None:
        asked.append(1)
        raise PermissionError("not you")

    with pytest.raises(PermissionError, match="not you"):
        _ask(call, may_pass=lambda error: not isinstance(error, PermissionError))
    assert asked == [1]


def test_an_error_that_never_passes_is_the_cause_of_the_timeout() -> None:
    def call() -> None:
        raise OSError("nobody is there")

    with pytest.raises(FirstContactTimeout) as told:
        _ask(call, seconds=0.05)
    assert str(told.value.__cause__) == "nobody is there"


def test_a_silent_store_is_reported_and_given_up_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "FIRST_STORAGE_REPORT", 0.0)
    monkeypatch.setattr(first_contact, "NEXT_STORAGE_REPORT", 0.01)
    over, reports = threading.Event(), list[BaseException | None]()
    try:
        with pytest.raises(FirstContactTimeout) as told:
            _ask(
                lambda: over.wait(_LONG),
                seconds=0.1,
                report=lambda why, _: reports.append(why),
            )
    finally:
        over.set()
    assert told.value.__cause__ is None
    assert reports and set(reports) == {None}


def test_one_who_is_asked_to_leave_leaves_though_nobody_answers() -> None:
    over = threading.Event()

    def leave() -> None:
        raise SystemExit

    try:
        with pytest.raises(SystemExit):
            _ask(lambda: over.wait(_LONG), leave=leave)
    finally:
        over.set()
