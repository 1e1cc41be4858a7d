"""What workers print: read through pipes by one thread, shown line by line with a prefix.

A worker's line is never torn by another's. Output without a newline is neither collected without
limit nor kept back for long. A ``Console`` that is slow slows the workers down, as it would without
anything in between; one that is stuck or gone costs them nothing but its own copy of the output.
"""

from __future__ import annotations

import os
import selectors
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.agent.logs.worker_files import LogFile
    from elastic_runtime.config import Output
    from elastic_runtime.reporting.console import Console
    from elastic_runtime.reporting.json_lines import LineEvents

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 16
_PARTIAL_SECONDS = 0.2


@dataclass(frozen=True)
class Route:
    """Where one output stream of one worker goes.

    Attributes:
        console: it is shown.
        file: it is written to its log file. With neither it goes nowhere.
    """

    console: bool
    file: bool


def route(output: Output, local_rank: int, stream: str) -> Route:
    """Decides as torchrun does.

    Args:
        output: the settings.
        local_rank: the worker's.
        stream: ``stdout`` or ``stderr``.
    """
    bit = 1 if stream == "stdout" else 2
    redirected = _setting(output.redirects, local_rank) & bit
    teed = _setting(output.tee, local_rank) & bit
    shown = output.shows(local_rank) and (teed or not redirected)
    return Route(console=bool(shown), file=bool(redirected or teed))


def _setting(chosen: dict[int, int], local_rank: int) -> int:
    return chosen.get(local_rank, chosen.get(-1, 0))


@dataclass(frozen=True)
class Filter:
    """Lines that are copied to a file of their own.

    Attributes:
        needles: a line is taken if it contains one of these.
        file: takes them.
    """

    needles: tuple[bytes, ...]
    file: LogFile


class Stream:
    """One output stream of one worker, from its pipe to all the places where it goes.

    Args:
        source: the pipe's reading end; owned from now on, as are the files.
        prefix: put before each line, except in ``file``.
        console: shows it; None: it is not shown.
        file: takes the bytes as they are.
        selected: takes some of the lines.
        events: what makes events of the lines that are shown, instead of the prefix; None: nothing.
    """

    def __init__(
        self,
        source: int,
        prefix: bytes,
        console: Console | None,
        file: LogFile | None = None,
        selected: Filter | None = None,
        events: LineEvents | None = None,
    ) -> None:
        os.set_blocking(source, False)
        self.source = source
        self.open = True
        self.prefix = prefix
        self.events = events
        self._console = console
        self.file = file
        self._selected = selected
        self._partial = b""
        self._since = 0.0

    @property
    def held_up(self) -> bool:
        """Its worker ought to wait for the console, or for its log file."""
        console, file = self._console, self.file
        return (console is not None and console.full) or (file is not None and file.full)

    @property
    def is_logged(self) -> bool:
        """Some of it is written to a file."""
        return self.file is not None or self._selected is not None

    @property
    def due(self) -> float | None:
        """When an unfinished line is to be shown as it is, on the monotonic clock."""
        return self._since + _PARTIAL_SECONDS if self._partial else None

    def read(self) -> int:
        """Takes one chunk from the pipe, if there is one.

        Returns:
            Its size; 0 if there was none, or if there will be no more (``open`` is false then).
        """
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.open = False
            return 0
        if self.file is not None:
            self.file.write(data)
        if self._console is None and self._selected is None:
            return len(data)
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            self._show(self._partial + head + newline)
            self._partial = b""
        if tail and not self._partial:
            self._since = time.monotonic()
        self._partial += tail
        if len(self._partial) >= _LONGEST_LINE:
            self.show_partial()
        return len(data)

    def show_partial(self) -> None:
        """Shows what there is of an unfinished line."""
        if self._partial:
            self._show(self._partial)
            self._partial = b""

    def finish(self) -> None:
        """Takes what the worker has written, which has ended or is about to; closes everything.

        Something that has escaped from the worker may still hold the pipe and write; it is not
        waited for. What the worker itself has written fits into the pipe.
        """
        rest = 4 * _CHUNK
        while rest > 0 and (size := self.read()):
            rest -= size
        self.show_partial()
        if self._console is not None:
            self._console.end_line(self)
        os.close(self.source)
        if self.file is not None:
            self.file.close()
        if self._selected is not None:
            self._selected.file.close()

    def _show(self, text: bytes) -> None:
        if self._console is not None:
            if self.events is not None:
                self._console.write(self, b"", self.events(text))
            else:
                self._console.write(self, self.prefix, text)
        if self._selected is not None:
            lines = text.splitlines(keepends=True)
            taken = [
                self.prefix + line
                for line in lines
                if any(needle in line for needle in self._selected.needles)
            ]
            if taken:
                self._selected.file.write(b"".join(taken))


class Pump:
    """Moves the output of all workers, on a selector that belongs to the calling thread."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._reading: set[Stream] = set()
        self._held_up: set[Stream] = set()

    def add(self, streams: Sequence[Stream]) -> None:
        """Reads these from now on."""
        for stream in streams:
            self._selector.register(stream.source, selectors.EVENT_READ, stream)
            self._reading.add(stream)

    def ready(self, stream: Stream) -> None:
        """The selector has said that there is something to read."""
        if stream.held_up:
            self._stop_reading(stream)
            self._held_up.add(stream)
            return
        stream.read()
        if not stream.open:
            self._stop_reading(stream)

    def timeout(self, now: float) -> float | None:
        """Seconds until ``tick`` has something to do; None: nothing is due."""
        moments = [due for stream in self._reading if (due := stream.due) is not None]
        if self._held_up:
            moments.append(now + 0.5)  # a console that gets stuck does not report that
        return max(0.0, min(moments) - now) if moments else None

    def tick(self, now: float) -> None:
        """Shows unfinished lines that are due, and continues to read where it had to wait."""
        for stream in self._reading:
            if stream.due is not None and stream.due <= now:
                stream.show_partial()
        for stream in [stream for stream in self._held_up if not stream.held_up]:
            self._held_up.discard(stream)
            self.add([stream])

    def finish(self, streams: Sequence[Stream]) -> None:
        """Takes the rest of a dead worker's output."""
        for stream in streams:
            self._stop_reading(stream)
            self._held_up.discard(stream)
            stream.finish()

    def _stop_reading(self, stream: Stream) -> None:
        if stream in self._reading:
            self._reading.discard(stream)
            self._selector.unregister(stream.source)
