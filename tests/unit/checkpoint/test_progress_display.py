"""Long work says how far it has come; short work says nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from elastic_runtime.checkpoint.progress_display import Progress

if TYPE_CHECKING:
    import pytest


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, /, **fields: Any) -> None:
        self.seen.append((name, fields))


def test_what_is_over_soon_is_not_shown() -> None:
    events = Events()
    with Progress("loading", 10, events) as progress:
        progress.advance(10)
    assert not events.seen


def test_an_event_where_nobody_watches() -> None:
    events = Events()
    with Progress("loading step 3", 200, events, patience=0, interval=0) as progress:
        progress.advance(50)
        progress.advance(100)
        progress.advance(50)
    assert {name for name, _ in events.seen} == {"checkpoint.progress"}
    assert [fields["percent"] for _, fields in events.seen] == [25, 75, 100]
    assert events.seen[0][1]["doing"] == "loading step 3"


def test_events_keep_their_distance() -> None:
    events = Events()
    with Progress("loading", 100, events, patience=0, interval=60) as progress:
        for _ in range(100):
            progress.advance(1)
    assert len(events.seen) == 1


def test_ranks_other_than_the_first_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("loading", 100, None, patience=0) as progress:
        progress.advance(1)
    assert capfd.readouterr() == ("", "")


_WATCHED = """
from elastic_runtime.checkpoint.progress_display import Progress
with Progress("loading step 3", 1 << 20, lambda *_, **__: print("an event"), patience=0) as bar:
    for _ in range(2):
        bar.advance(1 << 19)
"""


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": os.getcwd()}
    with open(theirs, "wb", buffering=0) as terminal:
        done = subprocess.run(
            [sys.executable, "-c", _WATCHED],
            stderr=terminal,
            stdout=subprocess.PIPE,
            env=env,
            check=True,
            timeout=60,
        )
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "loading step 3" in shown
    assert "1.0/1.0 MB" in shown
    assert not done.stdout
