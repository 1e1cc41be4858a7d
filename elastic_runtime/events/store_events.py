"""Events of the rendezvous store, as one agent sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elastic_runtime.events.event import WARNING, Event


@dataclass(frozen=True)
class StoreLost(Event):
    """The store does not answer this agent."""

    name = "store.lost"
    level = WARNING
    sentence = "the store does not answer ({why}); training goes on"
    # Before the first round nothing trains yet.
    at_start: ClassVar[str] = "the store does not answer ({why}); trying again"
    whole_job = False
    kept = False

    why: str

    def message_at_start(self) -> str:
        """The line for people before this node was in a round."""
        return self.at_start.format_map(self._words())


@dataclass(frozen=True)
class StoreRefusesWrites(Event):
    """The store answers, and refuses writes or has no leader: at once, and every 30 s."""

    name = "store.trouble"
    level = WARNING
    sentence = "{why} (for {seconds})"
    whole_job = False
    kept = False

    why: str
    seconds: float


@dataclass(frozen=True)
class StoreFound(Event):
    """The store answers again."""

    name = "store.found"
    sentence = "the store answers again"
    whole_job = False


@dataclass(frozen=True)
class StoreForgot(Event):
    """The store answers again, and has none of the job's records; the members write them again."""

    name = "store.forgot"
    level = WARNING
    sentence = "the store has lost its data; the nodes write the records of the job again"


@dataclass(frozen=True)
class RecordBad(Event):
    """A record in the store cannot be read, and is treated as if it were not there."""

    name = "record.bad"
    level = WARNING
    sentence = "ignored a record in the store, {key}: {why}"
    whole_job = False

    key: str
    why: str
