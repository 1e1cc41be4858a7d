"""Signals that come once more while a process ends that was asked to leave."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent import launch
from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handled() -> Iterator[Any]:
    before = signal.signal(signal.SIGTERM, _end)
    yield
    signal.signal(signal.SIGTERM, before)


def _end(*_: object) -> None:
    raise SystemExit


def _run(code: int, *, ends: bool) -> None:
    asked: list[int] = []
    agent: Any = SimpleNamespace(ask_to_leave=asked.append, finish=None)
    config: Any = SimpleNamespace(signals=("SIGTERM",))
    with launch._signals(config, agent, ends=ends):
        os.kill(os.getpid(), signal.SIGTERM)
        agent.finish = SimpleNamespace(exit_code=code)
    assert asked == [signal.SIGTERM]


@pytest.mark.parametrize("code", [EXIT_LEFT, EXIT_FAILED, EXIT_DONE])
def test_a_request_after_the_end_replaces_no_exit_code(code: int) -> None:
    _run(code, ends=True)
    os.kill(os.getpid(), signal.SIGTERM)


def test_in_a_process_that_goes_on_signals_are_as_before() -> None:
    _run(EXIT_LEFT, ends=False)
    assert signal.getsignal(signal.SIGTERM) is _end
