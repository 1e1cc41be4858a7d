"""How events are shown: a few calm lines for a person, one line of JSON each for a machine.

On a console every event has a place in one table (``_LINES``); what is not in it is for debugging
and is not shown there. What concerns the whole job is shown by the node of group rank 0 only, so
that several nodes in one terminal say it once; what concerns one node is shown by that node.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import structlog

from elastic_runtime import errors
from elastic_runtime.reporting import wording
from elastic_runtime.reporting.json_lines import AUTO, CONSOLE
from elastic_runtime.reporting.wording import Fields, Shown, count

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

    from elastic_runtime.events import Emit

Text = Callable[[Fields], str]

_SECRET_NAME = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^@\s]*@")
_HIDDEN = "…"
_OURS = {
    name
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, errors.ElasticError)
}
_HEAD = ("timestamp", "level", "event", "node")


@dataclass(frozen=True)
class Line:
    """How one event looks on a console.

    Attributes:
        text: what it says; a plain string is filled in with the event's fields.
        level: for the machine-read log.
        whole_job: shown by group rank 0 only, as it would be the same on every node.
        shown: on a console at all.
    """

    text: str | Text
    level: str = "info"
    whole_job: bool = True
    shown: bool = True

    def render(self, fields: Fields) -> str:
        """The line; a field that is missing shows up as a question mark."""
        if callable(self.text):
            return self.text(fields)
        return self.text.format_map(Shown(fields))


def _sealed(fields: Fields) -> str:
    shown = Shown(fields)
    workers, nodes = count(fields.get("workers", "?"), "worker"), fields.get("nodes", "?")
    why = f" ({shown['reason']})" if fields.get("reason") else ""
    return f"round {shown['round']}: {workers} on {count(nodes, 'node')}{why}"


def _waiting(fields: Fields) -> str:
    shown = Shown(fields)
    if fields.get("outside"):
        return f"{shown['reason']} ({count(fields['have'], 'node')} in the job)"
    if fields.get("minimum") == 0:
        return f"waiting: {shown['reason']}"
    enough = isinstance(fields.get("have"), int) and fields["have"] >= fields.get("minimum", 0)
    if enough and fields.get("reason"):
        return f"waiting: {shown['reason']} ({count(fields['have'], 'node')})"
    why = f" ({shown['reason']})" if fields.get("reason") else ""
    return f"waiting for nodes: {shown['have']} of {shown['minimum']} are here{why}"


def _worker_failed(fields: Fields) -> str:
    if fields.get("echo"):  # it only says that a peer went away, which is told by that peer
        return ""
    shown = Shown(fields)
    named = f"worker {shown['rank']}"
    reason = shown["reason"].removeprefix(f"{named}: ") if fields.get("reason") else ""
    if reason.partition(":")[0] in _OURS:
        return ""  # the worker has said it in one line, and the command ends with it
    if reason.startswith((f"{named} ended ", f"{named} cannot ")):
        return f"rank {shown['rank']} {reason.removeprefix(f'{named} ')}"
    why = f": {reason}" if reason else f" with code {shown['exit_code']}"
    where = f" (see {shown['error_file']})" if fields.get("error_file") else ""
    return f"rank {shown['rank']} failed{why}{where}"


def _worker_killed(fields: Fields) -> str:
    if fields.get("by_agent"):  # which has said why
        return ""
    shown = Shown(fields)
    names = {-number.value: number.name for number in signal.Signals}
    code = fields.get("exit_code")
    by = f" by {names[code]}" if isinstance(code, int) and code in names else ""
    return f"rank {shown['rank']} was killed{by}"


def _found(fields: Fields) -> str:
    after = f" after {Shown(fields)['seconds']}" if "seconds" in fields else ""
    return f"the store answers again{after}"


def _recovered(fields: Fields) -> str:
    return f"round {Shown(fields)['round']}: {wording.recovery(fields)}"


def _resumed(fields: Fields) -> str:
    where = "" if fields.get("source", "storage") == "storage" else " from memory"
    return f"resumed at step {Shown(fields)['step']}{where}{wording.again(fields)}"


def _damaged(fields: Fields) -> str:
    shown = Shown(fields)
    what = f"the checkpoint of step {shown['step']}" if "step" in fields else "a checkpoint"
    return f"{what} in {shown['path']} is damaged and not used: {shown['problem']}"


def _partly(fields: Fields) -> str:
    shown = Shown(fields)
    parts = [f"it lacked {shown['missing']}"] if fields.get("missing") else []
    parts += [f"{shown['surplus']} of it was left out"] if fields.get("surplus") else []
    return f"not all of the checkpoint fits this program: {'; '.join(parts)}"


def _retry(fields: Fields) -> str:
    shown = Shown(fields)
    used = f"failure {shown['failures']} of {shown['budget']} allowed"
    return f"trying again ({used}): {shown['reason']}"


# Not an event of the program's: the store is lost before it was found, and nothing trains yet.
_NO_STORE_YET = "console.no_store_yet"

_LINES: dict[str, Line] = {
    "job.join_command": Line("another node joins with:\n  {command}"),
    "job.waiting": Line(_waiting),
    "job.done": Line(wording.done),
    "job.failed": Line("failed: {reason}", "error", shown=False),  # said last, by the command
    "agent.crashed": Line("{reason}", "error", shown=False),  # likewise
    "local.ended": Line("all nodes have ended: {reason}", "error"),
    "local.started": Line("started {nodes} (pids {pids})"),
    "hint": Line("hint: {text}", "warning"),
    "job.over": Line("the job is done; this node was in no round of it", whole_job=False),
    "start.slow": Line("still {doing} ({seconds} so far)", whole_job=False),
    "round.sealed": Line(_sealed),
    "round.recovered": Line(_recovered),
    "round.left": Line("round {round} was left: {reason}", shown=False),
    "worker.failed": Line(_worker_failed, "error", whole_job=False),
    "worker.killed": Line(_worker_killed, "warning", whole_job=False),
    "fault.retry": Line(_retry, "warning"),
    "store.lost": Line(
        "the store does not answer ({why}); training goes on", "warning", whole_job=False
    ),
    _NO_STORE_YET: Line(
        "the store does not answer ({why}); trying again", "warning", whole_job=False
    ),
    "store.trouble": Line("{why} (for {seconds})", "warning", whole_job=False),
    "store.found": Line(_found, whole_job=False),
    "store.forgot": Line("the store lost its memory; the job is written down again", "warning"),
    "record.bad": Line("ignored a record in the store, {key}: {why}", "warning", whole_job=False),
    "node.excluded": Line(
        "left out of the job ({reason}); joining again as new", "warning", whole_job=False
    ),
    "node.leaving": Line("leaving: {reason}", whole_job=False),
    "workers.cold": Line(
        "workers start cold, seconds slower each: {why}", "warning", whole_job=False
    ),
    "listening.wide": Line(
        "listening at all addresses: {reason}; --local-addr with an IP address of this machine "
        "narrows it down",
        shown=False,
    ),
    "preload.failed": Line(
        "--preload: {module} cannot be imported, and workers start without it: {why}",
        "warning",
        whole_job=False,
    ),
    "log.dropped": Line(
        "{path} cannot be written ({why}): what workers print is lost until it can",
        "warning",
        whole_job=False,
    ),
    "log.resumed": Line(
        "logs can be written again; {bytes} bytes are missing", "warning", whole_job=False
    ),
    "events.dropped": Line(
        "{path} cannot be written ({why}): events are missing there until it can",
        "warning",
        whole_job=False,
    ),
    "events.resumed": Line(
        "events can be written to {path} again; {bytes} bytes are missing",
        "warning",
        whole_job=False,
    ),
    "worker.waits": Line(
        "rank {rank} cannot be started yet: {why}; trying again for {seconds}",
        "warning",
        whole_job=False,
    ),
    "server.waits": Line(
        "the fork server cannot be started yet: {why}; trying again for {seconds}",
        "warning",
        whole_job=False,
    ),
    "private.lost": Line(
        "{path} was removed and cannot be made again ({why}): workers that start now cannot speak"
        " with their agent",
        "warning",
        whole_job=False,
    ),
    "progress.off": Line(
        "{path} cannot be written ({why}): no steps are seen of workers that start now",
        "warning",
        whole_job=False,
    ),
    "server.died": Line(
        "the fork server died ({why}); another one starts",
        "warning",
        whole_job=False,
    ),
    "metrics.off": Line(
        "no metrics: cannot listen at {where} (--metrics-port): {why}", "warning", whole_job=False
    ),
    "worker.stuck": Line(wording.stuck, "warning", whole_job=False),
    "step.none": Line(
        "no step was committed in the first {seconds} of train; if it makes steps, "
        "state.commit() must follow each of them",
        "warning",
        whole_job=False,
    ),
    "worker.hangs": Line(wording.hangs, "warning", whole_job=False),
    "round.waits": Line("no step so far: workers of {nodes} are busy()", whole_job=False),
    "state.given": Line("step {step} was given to {to} ranks from memory", shown=False),
    "state.unfit": Line("memory of step {step} cannot serve: {reason}", "warning"),
    "state.loaded": Line(wording.loaded, "warning"),
    "state.fresh": Line("training begins anew: {reason}", "warning"),
    "checkpoint.saved": Line("step {step} saved in {seconds}", shown=False),
    "checkpoint.save_failed": Line(
        "step {step} could not be saved, and is soon tried again: {problem}", "warning"
    ),
    "checkpoint.save_late": Line("{problem}, and training goes on ({seconds} so far)", "warning"),
    "checkpoint.unreachable": Line(
        "{path} cannot be reached, and is tried again ({seconds} so far): {why}", "warning"
    ),
    "checkpoint.rests_removed": Line("removed the rests of unfinished saves: {names}", shown=False),
    "checkpoint.resumed": Line(_resumed),
    "checkpoint.damaged": Line(_damaged, "warning"),
    "snapshot.taken": Line("step {step} is in memory after {seconds}", shown=False),
    "snapshot.off": Line("no snapshots are taken: {reason}", "warning"),
    "snapshot.refused": Line("no snapshot is taken: {problem}", "warning"),
    "snapshot.failed": Line("the snapshot of step {step} failed: {problem}", "warning"),
    "snapshot.uncopied": Line("snapshots have no copy on another node: {problem}", "warning"),
    "snapshot.unreadable": Line("no snapshot is looked at: {problem}", "warning"),
    "snapshot.incomplete": Line("the snapshot of step {step} is not used: {problem}", "warning"),
    "checkpoint.partly": Line(_partly, "warning"),
    "checkpoint.anew": Line(
        "{entries} of each rank begin anew: the checkpoint is of another world", "warning"
    ),
    "checkpoint.progress": Line("{doing}: {percent} %"),
    "controller.waiting": Line("waiting: {reason}", "warning"),
    "controller.ready": Line("looking after the ElasticJobs of namespaces: {namespace}"),
    "controller.failed": Line("{reason}", "error", shown=False),  # said last, by the command
    "controller.decided": Line("{job}: {reason}"),
    "controller.refused": Line("{job}: {reason} (in {delay})", "warning"),
    "controller.error": Line("{job}: {reason} (trying again in {delay})", "error"),
    "controller.event_lost": Line("{job}: an event was not taken: {reason}", "warning"),
    "controller.watch_broken": Line("the watch of {kind} broke: {reason}", "warning"),
    "controller.kopf": Line("kopf: {reason}", "warning"),
    "lease.held": Line("this controller leads"),
    "lease.waiting": Line("{holder} leads; standing by"),
    "lease.failed": Line("the Lease: {reason}", "warning"),
}
# Not an event of the program's: the console has waited long enough for a recovery.
_OVERDUE = "console.overdue"
_PATIENCE = 5.0
_UNKNOWN = Line("{event}", "debug", shown=False)


_NOT_REMEMBERED = frozenset(
    {"job.join_command", "job.waiting", "local.started", "store.lost", "store.trouble"}
)


def remembered(name: str, fields: Fields) -> str:
    """What ``elasticctl events`` says of an event later; "" if it is not worth keeping."""
    line = _LINES.get(name, _UNKNOWN)
    return line.render(fields) if line.shown and name not in _NOT_REMEMBERED else ""


@dataclass
class Console:
    """Renders events for one terminal: at most one line for a round and its recovery.

    The line of a round waits for ``round.recovered``, though not for ever, and takes in what
    belongs to it; anything else that is to be shown lets it go first. The first round of a job is
    shown at once: nothing has been lost, and a person waits for a sign of life. A node that waits
    to be let in says when it is, as no other node's terminal need be in sight.
    """

    node: str = ""
    _rank: int = 0
    _seen_round: bool = False
    _held: str = ""
    _waits: str = ""
    _outside: bool = False
    _resumed: str = field(default="", repr=False)

    def lines(self, name: str, fields: Fields) -> list[str]:
        """The lines to print now for an event; often none."""
        if name == "round.sealed":
            return self._sealed(fields)
        if name == "round.recovered":
            return self._recovered(fields)
        if name == _OVERDUE:
            return [*self._let_go(), *self._say_waits()]
        if name == "store.lost" and not self._seen_round:
            name = _NO_STORE_YET
        line = _LINES.get(name, _UNKNOWN)
        text = line.render(fields) if line.shown else ""
        if name == "job.waiting" and fields.get("outside"):
            return self._waits_outside(text)
        # Only who leads says that it waits, and that need not be who was rank 0.
        for_another = line.whole_job and self._rank != 0 and name != "job.waiting"
        if not text or for_another:
            return []
        if name == "checkpoint.resumed" and self._held:
            self._resumed = text
            return []
        return [*self._let_go(), text if line.whole_job else self._named(text)]

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

    def _sealed(self, fields: Fields) -> list[str]:
        self._rank = fields.get("group_rank", 0)
        waited, self._outside, self._waits = self._outside, False, ""
        lines = self._let_go()
        first, self._seen_round, self._resumed = not self._seen_round, True, ""
        if self._rank != 0:
            # Who has said that it waits says that it waits no more.
            return [*lines, self._named(f"let in: {_sealed(fields)}")] if waited else lines
        text = _sealed(fields)
        if first:
            return [*lines, text]
        self._held = text
        return lines

    def _recovered(self, fields: Fields) -> list[str]:
        if self._rank != 0:
            return []
        if not self._held:
            return [_LINES["round.recovered"].render(fields)]
        self._held += f" · {wording.recovery(fields)}"
        return self._let_go()

    @property
    def holds(self) -> bool:
        """Whether a line waits for what may make it needless."""
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
    console = Console(node_name) if _for_people(format, stream) else None
    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            _add_node(node_name),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _redact,
            _as_lines(console) if console else _as_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    lock = threading.Lock()

    def emit(name: str, /, **fields: Any) -> None:
        level = _LINES.get(name, _UNKNOWN).level
        with lock, suppress(OSError):
            getattr(logger, level)(name, **fields)
        if console and console.holds and name in ("round.sealed", "job.waiting"):
            timer = threading.Timer(_PATIENCE, emit, (_OVERDUE,))
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


def _as_lines(console: Console) -> structlog.typing.Processor:
    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        name = event.pop("event")
        lines = console.lines(name, event)
        if not lines:
            raise structlog.DropEvent
        return "\n".join(lines)

    return render
