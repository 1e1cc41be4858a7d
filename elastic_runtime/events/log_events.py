"""Events of what is printed and logged: lines of text, and files that cannot be written."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.events.event import WARNING, Event


@dataclass(frozen=True)
class WorkerLine(Event):
    """A worker has printed a line; only with ``--log-format=json``. Consoles show the line itself.

    ``reporting.json_lines`` writes it, without making one of these.
    """

    name = "worker.line"
    shown = False

    line: str
    partial: bool | None = None
    rank: int | None = None
    local_rank: int | None = None
    round: int | None = None
    stream: str | None = None


@dataclass(frozen=True)
class AgentLine(Event):
    """Something else than an event has been printed to where the events go, such as a warning of a
    library; only with ``--log-format=json``."""

    name = "agent.line"
    shown = False

    line: str
    partial: bool | None = None


@dataclass(frozen=True)
class WriteFailed(Event):
    """A file cannot be written; once, until it can."""

    level = WARNING
    whole_job = False

    path: str
    why: str


@dataclass(frozen=True)
class WriteResumed(Event):
    """What could not be written can be written again."""

    level = WARNING
    whole_job = False

    path: str
    bytes: int


@dataclass(frozen=True)
class LogDropped(WriteFailed):
    """A file of workers' output cannot be written; once, until it can."""

    name = "log.dropped"
    sentence = "{path} cannot be written ({why}): what workers print is lost until it can"


@dataclass(frozen=True)
class LogResumed(WriteResumed):
    """All files of workers' output can be written again."""

    name = "log.resumed"
    sentence = "logs can be written again; {bytes} bytes are missing"


@dataclass(frozen=True)
class EventsDropped(WriteFailed):
    """``--log-file`` cannot be written; once, until it can."""

    name = "events.dropped"
    sentence = "{path} cannot be written ({why}): events are missing there until it can"


@dataclass(frozen=True)
class EventsResumed(WriteResumed):
    """``--log-file`` can be written again."""

    name = "events.resumed"
    sentence = "events can be written to {path} again; {bytes} bytes are missing"
