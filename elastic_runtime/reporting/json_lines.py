"""How events are written; and lines of text as events, for streams that hold nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

# How events are shown: for people, as one line of JSON each, or as fits to where they go.
CONSOLE = "console"
JSON = "json"
AUTO = "auto"

WORKER_LINE = "worker.line"
AGENT_LINE = "agent.line"


@dataclass(frozen=True)
class LineEvents:
    """Makes an event of each line.

    Attributes:
        event: its name: ``WORKER_LINE`` or ``AGENT_LINE``.
        fields: whose lines they are, for each of them.
    """

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, text: bytes) -> bytes:
        """The events of some lines, one a line; the last one may be unfinished, which it says."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        said = {"timestamp": now, "level": "info", "event": self.event, **self.fields}
        # The same for all of them, and a worker may print a lot.
        head = f'{json.dumps(said, ensure_ascii=False)[:-1]}, "line": '
        *lines, rest = text.split(b"\n")
        events = [f"{head}{_quoted(line)}}}\n" for line in lines]
        if rest:
            events.append(f'{head}{_quoted(rest)}, "partial": true}}\n')
        return "".join(events).encode()

    def with_(self, **fields: Any) -> Self:
        """The same, with other fields."""
        return replace(self, fields={**self.fields, **fields})


def _quoted(line: bytes) -> str:
    # What is no UTF-8 shows up as \xff, and nothing is lost of it.
    return json.dumps(line.decode(errors="backslashreplace"), ensure_ascii=False)
