"""Long work says how far it has come; short work says nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.progress_display import ProgressDisplay
from elastic_runtime.events.checkpoint_events import CheckpointProgress
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    import pytest

    from elastic_runtime.events import Event


def test_what_is_over_soon_is_not_shown() -> None:
    events: list[Event] = []
    with ProgressDisplay("loading", 10, events.append) as progress:
        progress.advance(10)
    assert not events


def test_an_event_where_nobody_watches() -> None:
    events: list[Event] = []
    with ProgressDisplay("loading step 3", 200, events.append, patience=0, interval=0) as progress:
        progress.advance(50)
        progress.advance(100)
        progress.advance(50)
    doing = "loading step 3"
    assert events == [CheckpointProgress(doing, percent) for percent in (25, 75, 100)]


def test_events_keep_their_distance() -> None:
    events: list[Event] = []
    with ProgressDisplay("loading", 100, events.append, patience=0, interval=60) as progress:
        for _ in range(100):
            progress.advance(1)
    assert len(events) == 1


def test_ranks_other_than_the_first_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay("loading", 100, None, patience=0) as progress:
        progress.advance(1)
    assert capfd.readouterr() == ("", "")


_WATCHED = """
from elastic_runtime.checkpoint.progress_display import ProgressDisplay
with ProgressDisplay("loading step 3", 1 << 20, lambda _: print("an event"), patience=0) as bar:
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
            timeout=PROGRAM_TIMEOUT,
        )
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "loading step 3" in shown
    assert "1.0/1.0 MB" in shown
    assert not done.stdout
