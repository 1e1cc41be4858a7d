"""How events are shown: a short line each for a person, a line of JSON for a machine.

Each event knows its own line (``events``); the console decides when it is shown, and joins the line
of a round with the line of its recovery. What concerns the whole job is shown by the node of group
rank 0 only, so that several nodes in one terminal say it once; what concerns one node is shown by
that node.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import structlog

from elastic_runtime.events.checkpoint_events import CheckpointResumed
from elastic_runtime.events.job_events import JobWaiting
from elastic_runtime.events.round_events import RoundRecovered, RoundSealed
from elastic_runtime.events.store_events import StoreLost
from elastic_runtime.limits import LONGEST_HOLD
from elastic_runtime.reporting.json_lines import AUTO, CONSOLE

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

    from elastic_runtime.events import Emit, Event

_SECRET_NAME = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^@\s]*@")
_HIDDEN = "…"
_HEAD = ("timestamp", "level", "event", "node")


@dataclass
class TerminalRenderer:
    """Renders events for one terminal: at most one line for a round and its recovery.

    The line of a round waits for ``round.recovered``, though not for ever, and takes in what
    belongs to it; anything else that is to be shown lets it go first. The first round of a job is
    shown at once: nothing has been lost, and a person waits to see something happen. A node that
    had to wait outside of the round says when it is admitted, as no other node's terminal need be
    in sight.
    """

    node: str = ""
    _rank: int = 0
    _seen_round: bool = False
    _held: str = ""
    _waits: str = ""
    _outside: bool = False
    _resumed: str = field(default="", repr=False)

    def lines(self, event: Event) -> list[str]:
        """The lines to print now for an event; often none."""
        if isinstance(event, RoundSealed):
            return self._sealed(event)
        if isinstance(event, RoundRecovered):
            return self._recovered(event)
        text = self._text(event)
        waits = isinstance(event, JobWaiting)
        if isinstance(event, JobWaiting) and event.outside:
            return self._waits_outside(text)
        # Only who leads says that it waits, and that need not be who was rank 0.
        for_another = event.whole_job and self._rank != 0 and not waits
        if not text or for_another:
            return []
        if isinstance(event, CheckpointResumed) and self._held:
            self._resumed = text
            return []
        return [*self._let_go(), text if event.whole_job else self._named(text)]

    def overdue(self) -> list[str]:
        """The lines to print when the line that is kept back has waited for long enough."""
        return [*self._let_go(), *self._say_waits()]

    def _text(self, event: Event) -> str:
        if isinstance(event, StoreLost) and not self._seen_round:
            return event.message_at_start()
        return event.message() if event.shown else ""

    def _waits_outside(self, text: str) -> list[str]:
        """This node alone waits. One that was in the job before is often back within a second."""
        self._waits = self._named(text)
        return [] if self._seen_round else [*self._let_go(), *self._say_waits()]

    def _say_waits(self) -> list[str]:
        text, self._waits = self._waits, ""
        self._outside = self._outside or bool(text)
        return [text] if text else []

    def _named(self, text: str) -> str:
        return f"{self.node}: {text}" if self.node else text

    def _sealed(self, event: RoundSealed) -> list[str]:
        self._rank = event.group_rank
        waited, self._outside, self._waits = self._outside, False, ""
        lines = self._let_go()
        first, self._seen_round, self._resumed = not self._seen_round, True, ""
        text = event.message()
        if self._rank != 0:
            # A node that has reported that it waits also reports the end of that.
            return [*lines, self._named(f"admitted: {text}")] if waited else lines
        if first:
            return [*lines, text]
        self._held = text
        return lines

    def _recovered(self, event: RoundRecovered) -> list[str]:
        if self._rank != 0:
            return []
        if not self._held:
            return [event.message()]
        self._held += f" · {event.cost()}"
        return self._let_go()

    @property
    def holds(self) -> bool:
        """Whether a line is kept back for now, as what comes next may make it needless."""
        return bool(self._held or self._waits)

    def _let_go(self) -> list[str]:
        held, resumed = self._held, f" · {self._resumed}" if self._resumed else ""
        self._held = self._resumed = ""
        return [held + resumed] if held else []


def make_emit(format: str, stream: TextIO, node_name: str = "") -> Emit:
    """Makes the ``Emit`` of a process.

    Args:
        format: ``console``, ``json``, or ``auto``: console if ``stream`` is a terminal.
        stream: where the lines go.
        node_name: the node, for every line of JSON and for what concerns this node only.

    Returns:
        An emitter that may be called from any thread. It never raises for a stream that has gone
        away: a job does not end because nobody reads its log any more.
    """
    if _for_people(format, stream):
        return _for_console(TerminalRenderer(node_name), stream)
    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            _add_node(node_name),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _redact,
            _as_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    lock = threading.Lock()

    def emit(event: Event, /) -> None:
        with lock, suppress(OSError):
            getattr(logger, event.level)(event.name, **event.fields())

    return emit


def _for_console(console: TerminalRenderer, stream: TextIO) -> Emit:
    lock = threading.Lock()

    def show(lines: list[str]) -> None:
        with suppress(OSError):
            for line in lines:
                stream.write(f"{_without_secret(line)}\n")
            stream.flush()

    def overdue() -> None:
        with lock:
            show(console.overdue())

    def emit(event: Event, /) -> None:
        with lock:
            show(console.lines(event))
            holds = console.holds
        if holds and isinstance(event, RoundSealed | JobWaiting):
            timer = threading.Timer(LONGEST_HOLD, overdue)
            timer.daemon = True
            timer.start()

    return emit


def _for_people(format: str, stream: TextIO) -> bool:
    return format == CONSOLE or (format == AUTO and stream.isatty())


def _add_node(node: str) -> structlog.typing.Processor:
    def add(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if node:
            event.setdefault("node", node)
        return event

    return add


def _redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        event[name] = _HIDDEN if _SECRET_NAME.search(name) else _without_secret(value)
    return event


def _without_secret(value: Any) -> Any:
    if isinstance(value, str):
        return _SECRET_IN_URL.sub(rf"\1:{_HIDDEN}@", value)
    if isinstance(value, list | tuple):
        return [_without_secret(item) for item in value]
    if isinstance(value, MutableMapping):
        return _redact(None, "", dict(value))
    return value


def _as_json(_: WrappedLogger, __: str, event: EventDict) -> str:
    # What every line has comes first, for those who read the raw file.
    head = {name: event.pop(name) for name in _HEAD if name in event}
    return json.dumps({**head, **event}, default=str, ensure_ascii=False)
