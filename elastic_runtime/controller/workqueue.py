"""Which jobs are to be looked at, and when: each once at a time, whatever happened to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_runtime.controller.views import Key


class WorkQueue:
    """Jobs to look at, in the order in which something happened to them.

    A job that is being looked at is not given to another worker; if something happens to it
    meanwhile, it comes again afterwards.
    """

    def __init__(self) -> None:
        self._keys: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, key: Key) -> None:
        """Something has happened to a job."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._keys.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Looks at a job again after a while, instead of any later moment that was set before."""
        self.cancel_timer(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(seconds, 0.0), self._due, key)

    def cancel_timer(self, key: Key) -> None:
        """No later look at a job is planned."""
        if timer := self._timers.pop(key, None):
            timer.cancel()

    async def get(self) -> Key:
        """The next job; it is busy until ``done``."""
        key = await self._keys.get()
        self._waiting.discard(key)
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        """A job has been looked at."""
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
