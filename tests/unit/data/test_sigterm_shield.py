"""A loader's process outlives the SIGTERM of a whole job, and ends with a later one."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.data import sigterm_shield
from elastic_runtime.data.sigterm_shield import Shielded

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[..., Any]]:
    """The handlers that are set; this process keeps its own."""
    found: dict[int, Callable[..., Any]] = {}
    fake = SimpleNamespace(SIGTERM=signal.SIGTERM, signal=found.__setitem__)
    monkeypatch.setattr(sigterm_shield, "signal", fake)
    return found


class _Ended(Exception):
    pass


def test_the_first_signal_and_its_echo_are_outlived_and_a_later_one_is_not(
    handlers: dict[int, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise _Ended

    monkeypatch.setattr(sigterm_shield, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sigterm_shield, "os", SimpleNamespace(_exit=end))
    Shielded(None)(0)
    handle = handlers[signal.SIGTERM]
    handle(signal.SIGTERM, None)
    handle(signal.SIGTERM, None)
    now[0] += 60
    with pytest.raises(_Ended):
        handle(signal.SIGTERM, None)
    assert codes == [0], "the worker must not take it for a failure of its loader"


def test_the_users_function_comes_last_and_may_do_otherwise(
    handlers: dict[int, Callable[..., Any]],
) -> None:
    seen: list[tuple[int, bool]] = []
    Shielded(lambda worker: seen.append((worker, signal.SIGTERM in handlers)))(3)
    assert seen == [(3, True)]
