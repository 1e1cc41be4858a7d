"""How far a long save or load has come: a bar on a terminal, an event now and then otherwise.

Nothing is shown of what is over soon.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from elastic_runtime.events.checkpoint_events import CheckpointProgress
from elastic_runtime.limits import PROGRESS_AFTER, PROGRESS_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.events.event import NotedEvent


class ProgressDisplay:
    """Counts bytes, from any thread.

    Example::

        with ProgressDisplay("loading step 120", total, note) as progress:
            ...
            progress.advance(1 << 20)
    """

    def __init__(
        self,
        doing: str,
        total: int,
        note: Callable[[NotedEvent], None] | None,
        *,
        patience: float = PROGRESS_AFTER,
        interval: float = PROGRESS_INTERVAL,
    ) -> None:
        """Begins to count.

        Args:
            doing: what is done, for people.
            total: how many bytes there are.
            note: takes the event ``checkpoint.progress``; None: nothing is shown, as for ranks
                other than the first.
            patience: after how many seconds something is shown.
            interval: seconds between two events.
        """
        self._doing = doing
        self._total = max(1, total)
        self._note = note
        self._interval = interval
        self._lock = threading.Lock()
        self._done = 0
        self._next = time.monotonic() + patience
        self._bar: Any = None

    def advance(self, count: int) -> None:
        """Counts ``count`` bytes more."""
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.update(0, completed=self._done)
            elif self._note is not None and time.monotonic() >= self._next:
                self._show()

    def _show(self) -> None:
        self._next = time.monotonic() + self._interval
        if sys.stderr.isatty():
            self._bar = _bar(self._doing, self._total, self._done)
        elif self._note is not None:
            percent = min(100, 100 * self._done // self._total)
            self._note(CheckpointProgress(self._doing, percent))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(doing: str, total: int, done: int) -> Any:
    # Only here, as most jobs never show one.
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    bar.add_task(doing, total=total, completed=done)
    return bar
