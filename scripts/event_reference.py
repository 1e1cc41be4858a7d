#!/usr/bin/env python3
"""Makes docs/events.md from the events' classes.

    .venv/bin/python scripts/event_reference.py

With --check it writes nothing, and ends with 1 if the file is not what it would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.events.event import SUBJECTS, NotedEvent, known_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.events import Event

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "events.md"

HEAD = """# Events

All that `elastic-run` and the controller can say, made from the classes in `elastic_runtime/events`
by `scripts/event_reference.py`; change those, not this page. With `--log-format json` or
`--log-file` each event is one line of JSON: `timestamp`, `level`, `event` (its name), `node`, and
its fields. A field in *italics* is missing where nothing is known. "On the console": whether people
see the line, `node` if each node says it for itself; otherwise the node of group rank 0 says it for
all. `{...}` in a line is a field; `…` what depends on more than one.
"""

# One name means the same in all events.
MEANINGS = {
    "about": "which hint it is",
    "address": "of this node, as other nodes reach it",
    "alone": "the rank trains without the others that there are",
    "at_once": "samples that a worker holds at a time, at most",
    "blocked": "how long training stood still for it, in seconds",
    "budget": "failures that are allowed (`--max-restarts`)",
    "by_agent": "the agent has killed it",
    "bytes": "how much, in bytes",
    "command": "a command line",
    "connect": "how long the ranks took to connect, in seconds",
    "copied": "each node's part has a copy on another node",
    "delay": "until the next try, in seconds",
    "doing": "what is under way",
    "duty": "what `state.at` has asked for, by name",
    "echo": "the worker ended only because another one did",
    "entries": "names of entries of the checkpoint",
    "every": "inner steps from one sync to the next",
    "exit_code": "of the process; minus the signal's number if a signal ended it",
    "failures": "failures so far that count",
    "file": "where the traceback is",
    "given_up": "committed steps that are given up",
    "goodput": "the share of the time in which steps advanced that still count, 0 to 1",
    "group_rank": "of this node in the round",
    "have": "nodes that are here",
    "holder": "who holds the Lease",
    "identity": "of this controller",
    "inner": "inner steps since the last sync",
    "job": "namespace/name of the ElasticJob",
    "keep": "ranks that keep what they have trained alone",
    "key": "of the record in the store",
    "how": "`reconfigure` or `rebuild` (`--regroup`)",
    "kind": "of Kubernetes resource",
    "line": "the text",
    "local_rank": "of the worker on its node",
    "local_ranks": "of the workers on this node",
    "lost_steps": "steps that were made twice",
    "maximum": "`--max`",
    "minimum": "`--min`; 0: it does not matter",
    "missing": "what the checkpoint lacks",
    "module": "of Python",
    "names": "of checkpoints",
    "namespace": "of Kubernetes; `all`",
    "new": "ranks that begin with the common model",
    "nodes": "how many, or their names",
    "outside": "the others train, and this node alone waits",
    "partial": "the line was not ended",
    "path": "of a file or a storage; `memory`: of a snapshot",
    "percent": "how far it is, 0 to 100",
    "pids": "of the processes",
    "pieces": "in which each worker computes its share of a step",
    "problem": "what is wrong, in words",
    "rank": "of the worker, global",
    "ranks": "of the workers, global",
    "reached": "the last step that was reached before",
    "reason": "why, in words",
    "restarts": "rounds that have ended so far, by class of the cause",
    "round": "number of the round",
    "sampler": "class of the sampler",
    "samples": "in a step, of all workers",
    "seconds": "how long, in seconds",
    "source": "`storage`, `memory` or `peer` (another node's memory)",
    "stalled": "how long there was no step, in seconds",
    "step": "number of the step; -1: not known",
    "stream": "`stdout` or `stderr`",
    "surplus": "what of the checkpoint the program does not have",
    "sync": "how long the ranks took to have one state, in seconds",
    "term": "of the saves: a job that goes on from an older state begins a new one",
    "text": "in words",
    "to": "how many ranks",
    "torch": "the version of torch",
    "trainer": "which trainer makes the steps; empty: none that there is an adapter for",
    "where": "host and port",
    "why": "why, in words",
    "workers": "how many, on all nodes",
}


def page() -> str:
    """The whole file.

    Raises:
        KeyError: a field has no meaning above.
    """
    return "\n".join([HEAD, *_subjects(), *_meanings()]).rstrip() + "\n"


def _subjects() -> Iterator[str]:
    events = known_events()
    for subject in SUBJECTS:
        module = import_module(f"elastic_runtime.events.{subject}")
        mine = [
            events[name] for name in sorted(events) if events[name].__module__ == module.__name__
        ]
        yield f"## {subject.removesuffix('_events').capitalize()}\n"
        yield f"{_plain(inspect.getdoc(module) or '')}\n"
        yield "| event | level | when | fields | on the console | line |"
        yield "|---|---|---|---|---|---|"
        yield from map(_row, mine)
        yield ""


def _row(event: type[Event]) -> str:
    console = ("yes" if event.whole_job else "`node`") if event.shown else "no"
    line = f"`{' '.join(event.sentence.split())}`" if event.sentence else ""
    level = event.level if event.logged else "not logged"
    when = _plain(inspect.getdoc(event) or "")
    cells = (f"`{event.name}`", level, when, _fields(event), console, line)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _fields(event: type[Event]) -> str:
    own = [one for one in fields(event) if one.name != "extra"]
    if issubclass(event, NotedEvent):  # known wherever the event is seen, as its agent adds them
        own = [*own[2:], *own[:2]]
    optional = {one.name for one in own if "None" in str(one.type)} - {"rank", "round"}
    return ", ".join(f"*{one.name}*" if one.name in optional else one.name for one in own)


def _meanings() -> Iterator[str]:
    used = {one.name for event in known_events().values() for one in fields(event)} - {"extra"}
    yield "## Fields\n"
    yield "| field | |"
    yield "|---|---|"
    yield from (f"| `{name}` | {MEANINGS[name]} |" for name in sorted(used))


def _plain(text: str) -> str:
    return " ".join(re.sub(r"``", "`", text).split())


def main() -> int:
    """Writes the file, or checks it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/events.md is out of date: run scripts/event_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
