"""How ``elasticctl`` shows a report on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from elastic_runtime.cli.ctl import run_report as states
from elastic_runtime.limits import EVENTS_SHOWN
from elastic_runtime.reporting.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

    from elastic_runtime.cli.ctl.run_report import RunReport
    from elastic_runtime.protocol.records import EventRecord

_STYLES = {
    states.RUNNING: "green",
    states.SUCCEEDED: "green",
    states.FAILED: "red",
    states.DEAD: "red",
    states.CHANGING: "yellow",
    states.SILENT: "red",
    states.LEAVING: "yellow",
    states.BETWEEN: "yellow",
}


def status(
    report: RunReport,
    *,
    unreachable: bool = False,
    most_nodes: int | None = None,
    most_events: int = EVENTS_SHOWN,
) -> RenderableType:
    """One screen: the job, its nodes, and what happened last.

    Args:
        report: what is known.
        unreachable: the store does not answer at the moment, so it may be out of date.
        most_nodes, most_events: so many are shown; None: all.
    """
    parts: list[RenderableType] = [*_job(report), Text(), _nodes(report, most_nodes)]
    if report.events and most_events:
        parts += [Text(), events(report.events[-most_events:])]
    parts += [Text(f"unreadable record {key}: {why}", style="yellow") for key, why in report.bad]
    if report.trouble:
        parts.append(Text(f"the store: {report.trouble}", style="red"))
    if unreachable:
        parts.append(Text("the store does not answer; trying again", style="red"))
    return Group(*parts)


def fitted(report: RunReport, console: Console, *, unreachable: bool = False) -> RenderableType:
    """The same, as far as there are lines: old events are left out first, then nodes.

    Args:
        report, unreachable: see ``status``.
        console: where it is shown; its size may change from one time to the next.
    """
    events_left, nodes_left = min(EVENTS_SHOWN, len(report.events)), len(report.nodes)
    while True:
        shown = status(
            report, unreachable=unreachable, most_nodes=nodes_left, most_events=events_left
        )
        # A last line stays free: a terminal that is full to the last one scrolls.
        surplus = len(console.render_lines(shown)) - (console.height - 1)
        if surplus <= 0 or (events_left, nodes_left) == (0, 0):
            return shown
        if events_left:
            events_left = max(0, events_left - surplus)
        else:
            nodes_left = max(0, nodes_left - surplus)


def _job(report: RunReport) -> Iterable[Text]:
    script = f" · {report.entry}" if report.entry else ""
    title = Text.assemble(
        ("run ", "bold"),
        (report.run_id, "bold"),
        script,
        " · ",
        (report.state, _STYLES.get(report.state, "")),
    )
    yield title
    if report.bounds:
        low, high = report.bounds
        scaled = ""
        if report.launch_bounds and report.launch_bounds != report.bounds:
            scaled = " (started with {} to {})".format(*report.launch_bounds)
        yield Text(f"nodes   {low} to {high}{scaled}")
    if report.round:
        members = sum(1 for line in report.nodes if line.ranks)
        yield Text(
            f"round   {report.round}: {count(report.world_size, 'worker')} on "
            f"{count(members, 'node')} ({report.reason})"
        )
    if report.regroup:
        yield Text(f"regroup {report.regroup}")
    if report.apart:
        yield Text(f"apart   {report.apart}", style="red")
    if report.step >= 0:
        yield Text(f"step    {report.step}")
    yield Text(
        f"faults  {count(report.failures, 'failure')} of the script (these count), "
        f"{count(report.killed, 'killed worker')}, {count(report.lost, 'lost node')}, "
        f"{count(report.planned, 'change')}"
    )
    if report.outcome:
        yield Text(f"end     {report.outcome}")


def _nodes(report: RunReport, most: int | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    placed = any(line.topology for line in report.nodes)
    headings = ("node", "state", "ranks", "step", "address", "answers")
    for heading in (*headings, *(["topology"] if placed else [])):
        table.add_column(heading, overflow="fold")
    for line in report.nodes[:most]:
        table.add_row(
            Text(line.name),
            Text(line.role, style=_STYLES.get(line.role, "")),
            line.ranks or "–",
            str(line.step) if line.step >= 0 else "–",
            Text(line.address),
            "yes" if line.answers else "no",
            *([Text(line.topology or "–")] if placed else []),
        )
    if left_out := len(report.nodes[len(report.nodes) if most is None else most :]):
        table.add_row(Text(f"and {count(left_out, 'more node')}", style="dim"))
    return table


def events(records: Iterable[EventRecord]) -> RenderableType:
    """The last events, the oldest first, in this machine's time."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("time", "round", "node", "event"):
        table.add_column(heading, overflow="fold")
    for event in records:
        at = datetime.fromtimestamp(event.at, tz=UTC).astimezone()
        what = f"{event.name}: {event.text}" if event.text else event.name
        table.add_row(f"{at:%H:%M:%S}", str(event.round or "–"), Text(event.node), Text(what))
    return table


def runs(reports: Iterable[RunReport]) -> RenderableType:
    """A line for each run."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "state", "round", "workers", "step", "script"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        table.add_row(
            Text(report.run_id),
            Text(report.state, style=_STYLES.get(report.state, "")),
            str(report.round or "–"),
            str(report.world_size or "–"),
            str(report.step) if report.step >= 0 else "–",
            Text(report.entry),
        )
    return table
