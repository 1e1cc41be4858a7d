"""How ``elasticctl`` shows jobs of a cluster on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from elastic_runtime.cli.kube import job_report as states
from elastic_runtime.limits import EVENTS_SHOWN
from elastic_runtime.reporting.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from elastic_runtime.cli.kube.job_report import EventLine, JobLine, JobReport

_STYLES = {
    states.RUNNING: "green",
    states.SUCCEEDED: "green",
    states.FAILED: "red",
    states.RESTARTING: "yellow",
    states.UNSEEN: "yellow",
    states.DELETING: "yellow",
}
_POD_STYLES = {"running": "green", "succeeded": "green", "pending": "", "leaving": "yellow"}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def jobs(lines: Iterable[JobLine], now: float, everywhere: bool = False) -> RenderableType:
    """A line for each job.

    Args:
        lines: the jobs.
        now: seconds since 1970.
        everywhere: of all namespaces, which are then named.
    """
    columns = ("state", "world", "wanted", "step", "goodput", "restarts", "age")
    table = _table(*(["namespace"] if everywhere else []), "name", *columns)
    for line in lines:
        named = (line.namespace, line.name) if everywhere else (line.name,)
        table.add_row(
            *map(Text, named),
            Text(line.state, style=_STYLES.get(line.state, "")),
            _number(line.world),
            str(line.desired),
            _number(line.step),
            line.goodput or "–",
            str(line.restarts),
            age(line.created, now),
        )
    return table


def status(report: JobReport, now: float, *, unreachable: bool = False) -> RenderableType:
    """One screen: the job, its conditions, its pods, and what happened last.

    Args:
        report: what is known.
        now: seconds since 1970.
        unreachable: the API server does not answer at the moment, so it may be out of date.
    """
    parts: list[RenderableType] = list(_job(report, now))
    if report.conditions:
        parts += [Text(), _conditions(report, now)]
    if report.pods:
        parts += [Text(), _pods(report, now)]
    if report.events:
        parts += [Text(), events(report.events[-EVENTS_SHOWN:])]
    parts += [Text(note, style="yellow") for note in report.notes]
    if unreachable:
        parts.append(Text("the API server does not answer; trying again", style="red"))
    return Group(*parts)


def events(lines: Sequence[EventLine]) -> RenderableType:
    """Events, the oldest first, in this machine's time."""
    table = _table("time", "about", "reason", "event")
    for line in lines:
        at = datetime.fromtimestamp(line.at, tz=UTC).astimezone()
        often = f" (×{line.count})" if line.count > 1 else ""
        table.add_row(
            f"{at:%H:%M:%S}",
            Text(line.object),
            Text(line.reason, style="yellow" if line.type == "Warning" else ""),
            Text(line.message + often),
        )
    return table


def age(since: float, now: float) -> str:
    """A length of time in one unit, as in ``kubectl get``; "–" if its beginning is not known."""
    if not since:
        return "–"
    seconds = max(0, int(now - since))
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _job(report: JobReport, now: float) -> Iterator[Text]:
    line = report.line
    yield Text.assemble(
        ("job ", "bold"),
        (line.name, "bold"),
        f" · namespace {line.namespace} · ",
        (line.state, _STYLES.get(line.state, "")),
        f" · {_times(report, now)}",
    )
    if line.state == states.UNSEEN:
        look = "is one running? kubectl -n elastic-job get pods"
        yield Text(f"note    no controller has taken notice of it: {look}", style="yellow")
    elif line.why:
        yield Text(f"note    {line.why}")
    yield Text(f"runs    {' '.join(report.args)} ({report.image})")
    low, high = report.bounds
    behind = "; a change is on its way" if line.behind and not line.over else ""
    yield Text(f"pods    {line.ready} of {line.desired} ready ({low} to {high}{behind})")
    if line.round:
        size = f": {count(line.world, 'worker')}" if line.world else ""
        yield Text(f"round   {line.round}{size}")
    if line.step is not None and line.step >= 0:
        saved = report.checkpoint_step
        last = "none yet" if saved is None or saved < 0 else f"step {saved}"
        yield Text(f"step    {line.step} · last checkpoint: {last}")
    if report.restarts or report.attempt:
        classes = ("failed", "killed", "lost", "planned")
        counts = ", ".join(f"{report.restarts.get(name, 0)} {name}" for name in classes)
        again = f" · started again {count(report.attempt, 'time')}" if report.attempt else ""
        yield Text(f"faults  {counts}{again}")
    if line.fault:
        yield Text(f"last    {line.fault}")


def _times(report: JobReport, now: float) -> str:
    if report.started and report.ended:
        return f"ran for {age(report.started, report.ended)}, ended {age(report.ended, now)} ago"
    return f"{age(report.line.created, now)} old"


def _conditions(report: JobReport, now: float) -> Table:
    table = _table("condition", "status", "since", "reason", "message")
    for one in report.conditions:
        cells = (one.type, one.status, age(one.since, now), one.reason, one.message)
        table.add_row(*(Text(t, style="" if one.status == "True" else "dim") for t in cells))
    return table


def _pods(report: JobReport, now: float) -> Table:
    table = _table("pod", "state", "ready", "node", "address", "age", "why")
    for pod in report.pods:
        table.add_row(
            Text(pod.name),
            Text(pod.state, style=_POD_STYLES.get(pod.state, "red")),
            "yes" if pod.ready else "no",
            Text(pod.node or "–"),
            Text(pod.address or "–"),
            age(pod.created, now),
            Text(pod.detail),
        )
    return table


def _number(value: int | None) -> str:
    return "–" if value is None or value < 0 else str(value)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
