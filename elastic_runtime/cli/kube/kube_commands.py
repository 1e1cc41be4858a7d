"""``elasticctl`` on Kubernetes: look at a job, read its logs, change it, delete it.

``submit_command`` starts one. What is known of a job is in ``job_report``, how it looks in a
terminal in ``job_screen``; this module has the commands.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.live import Live

from elastic_runtime.cli.kube import job_screen as screen
from elastic_runtime.cli.kube.command_options import JobRef, cluster_options, connect
from elastic_runtime.cli.kube.job_client import JobClient, NoSuchJob, NotAllowed
from elastic_runtime.cli.kube.job_report import (
    JobLine,
    JobReport,
    bounds,
    event_lines,
    job_line,
    job_report,
)
from elastic_runtime.cli.kube.job_watch import poll
from elastic_runtime.cli.kube.pod_logs import LogFilter, LogFollower, read_logs, role_of
from elastic_runtime.cli.printing import FORMAT_OPTION, console, show
from elastic_runtime.controller.spec.job_spec import KIND
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import POLL_INTERVAL
from elastic_runtime.reporting.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.cli.kube.job_client import Object
    from elastic_runtime.cli.kube.pod_logs import LogLine
    from elastic_runtime.kubernetes.cluster_access import ClusterRef

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_JOB = click.argument("job", metavar="JOB")
_INTERVAL = click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="s"
)


# ---------------------------------------------------------------- look


@click.command()
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="of the whole cluster")
@click.option("--watch", is_flag=True, help="continue until interrupted")
@_INTERVAL
@FORMAT_OPTION
@cluster_options
def jobs(ref: ClusterRef, everywhere: bool, watch: bool, interval: float, form: str) -> None:
    """Lists the jobs of a namespace."""
    client = connect(ref)

    def look() -> list[JobLine]:
        return [job_line(job) for job in client.jobs(everywhere)]

    lines = look()
    if not watch:
        if not lines and form == "table":
            where = "the cluster" if everywhere else f"the namespace {client.namespace}"
            click.echo(f"no jobs in {where}", err=True)
        else:
            show(
                form, [asdict(line) for line in lines], screen.jobs(lines, time.time(), everywhere)
            )
    elif form == "json":
        shown = None
        for now in poll(look, lines, interval):
            if now is not None and now != shown:
                click.echo(json.dumps([asdict(line) for line in now], ensure_ascii=False))
                shown = now
    else:
        with Live(console=console(), auto_refresh=False) as live:
            for now in poll(look, lines, interval):
                lines = lines if now is None else now
                live.update(screen.jobs(lines, time.time(), everywhere), refresh=True)


def show_status(ref: JobRef, form: str, watch: bool, interval: float) -> None:
    """Shows one job, once or until it ends.

    Args:
        ref: the job.
        form: ``table`` or ``json``.
        watch: continue until it ends.
        interval: seconds between two looks.
    """
    client = connect(ref.cluster)
    report = _report(client, ref.name)
    if not watch:
        show(form, report.as_dict(), screen.status(report, time.time()))
        return
    looks = poll(lambda: _report(client, ref.name), report, interval, lambda now: now.line.over)
    try:
        if form == "json":
            shown = None
            for now in looks:
                if now is not None and now != shown:
                    click.echo(json.dumps(now.as_dict(), ensure_ascii=False))
                    shown = now
        else:
            with Live(console=console(), auto_refresh=False) as live:
                for now in looks:
                    report = report if now is None else now
                    seen = screen.status(report, time.time(), unreachable=now is None)
                    live.update(seen, refresh=True)
    except NoSuchJob:
        click.echo(f"{ref.name} was deleted", err=True)


def show_events(ref: JobRef, form: str) -> None:
    """Lists the events of a job and its pods."""
    client = connect(ref.cluster)
    job = client.job(ref.name)
    lines = event_lines(job, _events(client, ref.name))
    if not lines and form == "table":
        click.echo(f"no events of {ref.name}: the cluster keeps them for an hour", err=True)
    else:
        show(form, [asdict(line) for line in lines], screen.events(lines))


def _report(client: JobClient, name: str) -> JobReport:
    """All that is known of a job; who may see the job may not be allowed to see all the rest."""
    job, notes = client.job(name), []

    def tried(read: Callable[[], list[Object]]) -> list[Object]:
        try:
            return read()
        except NotAllowed as error:
            notes.append(str(error))
            return []

    pods = tried(lambda: client.pods(name))
    return job_report(job, pods, tried(lambda: _events(client, name)), notes)


def _events(client: JobClient, name: str) -> list[Object]:
    return client.events(KIND, name) + client.events("Pod")


# ---------------------------------------------------------------- logs


@click.command()
@_JOB
@click.option("-f", "--follow", is_flag=True, help="continue until the job ends")
@click.option("--rank", type=click.IntRange(0), help="only the worker with this global rank")
@click.option("--pod", default="", help="only this pod: its name, worker-1, 1 or etcd")
@click.option("--tail", type=click.IntRange(0), help="only the last lines of each pod")
@cluster_options
def logs(
    ref: ClusterRef, job: str, follow: bool, rank: int | None, pod: str, tail: int | None
) -> None:
    """Shows what the workers of JOB print, each line with its pod.

    A rank may move to another pod when the membership changes; --rank goes with it.
    """
    client = connect(ref)
    found = client.job(job)
    wanted = LogFilter(pod=pod, rank=rank, role=role_of(found), tail=tail)
    if follow:
        lines = LogFollower(client, job, wanted).lines()
    else:
        lines = read_logs(client, job, wanted, lambda note: click.echo(note, err=True))
    printed = _print_lines(lines)
    if rank is not None and not printed:
        raise UsageError(_no_line(job_line(found), rank))


def _print_lines(lines: Iterator[LogLine]) -> int:
    """Prints lines as they come, and returns how many there were."""
    printed = 0
    for line in lines:
        number = int(next(filter(str.isdecimal, line.pod.split("-")), "0"))
        prefix = click.style(f"{line.pod} |", fg=_COLOURS[number % len(_COLOURS)])
        text = line.text.decode(errors="replace")
        click.echo(f"{prefix} {text}")
        printed += 1
    return printed


def _no_line(line: JobLine, rank: int) -> str:
    if line.world is not None and rank >= line.world > 0:
        return f"{line.name} has no rank {rank}: the ranks of its world are 0 to {line.world - 1}"
    return (
        f"there is no line of rank {rank} in the logs of {line.name}: it has printed nothing, or "
        "its pods do not put ranks in front of lines, as elastic-run does"
    )


# ---------------------------------------------------------------- change


def scale_to(ref: JobRef, size: int | None) -> None:
    """Changes the number of pods of a job.

    Raises:
        UsageError: it is not said to how many, or not possible.
    """
    if size is None:
        raise UsageError(f"scale {ref.name} to what? elasticctl scale {ref.name} N")
    client = connect(ref.cluster)
    job = client.job(ref.name)
    _refuse_if_over(job)
    low, high = bounds(job["spec"])
    if not low <= size <= high:
        side, bound = ("below", "minReplicas") if size < low else ("above", "maxReplicas")
        raise UsageError(
            f"spec.replicaSpecs.Worker.replicas: {size} would be {side} spec.{bound} "
            f"({low if size < low else high}) of {ref.name}"
        )
    before = job_line(job).desired
    client.scale(ref.name, size)
    click.echo(f"{ref.name}: {count(size, 'pod')}, {before} before")


@click.command()
@_JOB
@cluster_options
def suspend(ref: ClusterRef, job: str) -> None:
    """Saves a checkpoint and removes all pods of JOB; resume continues from there."""
    _set_suspended(ref, job, True)


@click.command()
@_JOB
@cluster_options
def resume(ref: ClusterRef, job: str) -> None:
    """Goes on with a JOB that was suspended."""
    _set_suspended(ref, job, False)


def _set_suspended(ref: ClusterRef, name: str, value: bool) -> None:
    client = connect(ref)
    job = client.job(name)
    _refuse_if_over(job)
    if bool(job["spec"].get("suspend")) is value:
        click.echo(f"{name} is {'suspended already' if value else 'not suspended'}")
        return
    client.change(name, {"spec": {"suspend": value}})
    click.echo(f"{name} is being {'suspended' if value else 'resumed'}")


@click.command()
@_JOB
@click.option("--wait", is_flag=True, help="until the job and its pods are gone")
@cluster_options
def delete(ref: ClusterRef, job: str, wait: bool) -> None:
    """Deletes JOB and all that belongs to it; checkpoints stay."""
    client = connect(ref)
    uid = client.job(job)["metadata"].get("uid")
    client.delete(job)
    if wait:
        _until_gone(client, job, uid)
        click.echo(f"{job} is gone")
    else:
        click.echo(f"{job} is being deleted")


def _until_gone(client: JobClient, name: str, uid: str | None) -> None:
    def is_left() -> bool:
        try:
            if client.job(name)["metadata"].get("uid") == uid:
                return True
        except NoSuchJob:
            pass
        pods = [pod["metadata"].get("ownerReferences") or () for pod in client.pods(name)]
        return any(owner.get("uid") == uid for owners in pods for owner in owners)

    for _ in poll(is_left, True, POLL_INTERVAL, lambda left: not left):
        pass


def _refuse_if_over(job: Object) -> None:
    line = job_line(job)
    if line.over:
        raise UsageError(f"{line.name} has {line.state} already: delete it, and submit another")
