"""``elasticctl`` on Kubernetes: submit a job, look at it, change it, read its logs, delete it.

What a job is made of is in ``kube_job``, what is said about it in ``kube_report`` and
``kube_screen``; this module has the commands.
"""

from __future__ import annotations

import functools
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.live import Live

from elastic_runtime.cli.ctl.printing import FORMAT, console, show
from elastic_runtime.cli.kube import job_screen as screen
from elastic_runtime.cli.kube.build_job import Submission, make_job, name_after, read_job
from elastic_runtime.cli.kube.job_client import JobClient, NoSuchJob, NotAllowed
from elastic_runtime.cli.kube.job_report import (
    FAILED,
    UNSEEN,
    JobLine,
    JobReport,
    bounds,
    event_lines,
    job_line,
    job_report,
)
from elastic_runtime.cli.kube.pod_logs import LogFilter, LogFollower, read_logs, role_of
from elastic_runtime.controller.decide.job_spec import KIND
from elastic_runtime.errors import (
    ClusterUnreachable,
    TrainingFailed,
    UsageError,
)
from elastic_runtime.kubernetes.cluster_access import ClusterRef, need
from elastic_runtime.reporting.wording import count

if TYPE_CHECKING:
    from elastic_runtime.cli.kube.job_client import Object
    from elastic_runtime.cli.kube.pod_logs import LogLine

_POLL = 1.0
_UNSEEN_FOR = 10.0  # seconds that a controller may take to notice a job
_SUFFIX = 3  # bytes
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")

_F = Callable[..., Any]
_T = TypeVar("_T")


@dataclass(frozen=True)
class JobRef:
    """A job of a cluster, as a command line names it."""

    cluster: ClusterRef
    name: str


def cluster_options(command: _F) -> _F:
    """The options that say which cluster; the command gets a ``ClusterRef``."""

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        ref = ClusterRef(values.pop("context"), values.pop("namespace"))
        return command(ref, **values)

    called = click.option("--context", default="", help="a context of the kubeconfig")(called)
    return click.option("--namespace", "-n", default="", help="that of the context otherwise")(
        called
    )


_JOB = click.argument("job", metavar="JOB")
_WATCH = click.option("--watch", is_flag=True, help="go on until it ends")
_INTERVAL = click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="s"
)
_COUNT = click.IntRange(1)


def _connect(ref: ClusterRef) -> JobClient:
    """Opens a cluster until the command ends.

    Raises:
        UsageError: there are no usable credentials, or the extra is not installed.
    """
    return click.get_current_context().with_resource(JobClient(ref))


# ---------------------------------------------------------------- submit


class _Submit(click.Command):
    """Says where the script's own options belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            told = f"{error.message} Options of the script come after --."
            raise click.NoSuchOption(error.option_name, told, error.possibilities, ctx) from None


@click.command(cls=_Submit)
@click.argument("script", required=False)
@click.argument("args", nargs=-1)
@click.option("-f", "--file", help="the manifest of an ElasticJob instead of flags; - is stdin")
@click.option("--image", default="", help="what the pods run; its entry point is elastic-run")
@click.option("--name", default="", help="of the job; made of the script's name otherwise")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module")
@click.option("--min", "low", type=_COUNT, help="fewest pods that train  [default: 1]")
@click.option("--max", "high", type=_COUNT, help="most pods that train  [default: --min]")
@click.option("--replicas", type=_COUNT, help="pods to begin with  [default: --max]")
@click.option("--nproc-per-node", "nproc", default="", help="workers in a pod, or auto, gpu, cpu")
@click.option("--gpus", type=_COUNT, help="GPUs for a pod, each with a worker")
@click.option("--cpu", default="", help="processors for a pod, such as 2 or 500m")
@click.option("--memory", default="", help="memory for a pod, such as 8Gi")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="a variable; may be repeated")
@click.option("--checkpoint", default="", help="a PersistentVolumeClaim, or a URL")
@click.option("--spares", type=click.IntRange(0), help="pods that wait to replace a lost one")
@click.option("--max-restarts", type=click.IntRange(0), help="failures of the script to mend")
@click.option("--rdzv-endpoint", "endpoint", default="", help="an etcd; the job gets one otherwise")
@click.option("--dry-run", is_flag=True, help="only print the job")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="print the job")
@click.option("--wait", is_flag=True, help="until the job ends; 1 if it fails")
@cluster_options
def submit(
    ref: ClusterRef, file: str | None, dry_run: bool, output: str | None, wait: bool, **flags: Any
) -> None:
    """Starts SCRIPT, with its ARGS, as an elastic job on a cluster.

    SCRIPT is a path inside the image, not on this machine. Write -- before ARGS that begin with a
    dash. What has no flag here goes into a manifest: print one with --dry-run, and submit it
    with -f.
    """
    job = _job_of(ref, file, flags)
    if dry_run:
        _print_object(job, output or "yaml")
        return
    client = _connect(ref)
    made = client.create(job)
    name = made["metadata"]["name"]
    if output:
        _print_object(made, output)
    else:
        image = "" if file else f"; {flags['script']} is looked for in {flags['image']}"
        click.echo(f"submitted {name} in the namespace {client.namespace}{image}")
    if wait:
        _wait(client, made)


def _job_of(ref: ClusterRef, file: str | None, flags: dict[str, Any]) -> Object:
    """The job of a command line.

    Raises:
        UsageError: something is missing, or too much.
    """
    if file is not None:
        also = [name for name, value in flags.items() if value not in (None, "", (), False)]
        if also:
            raise UsageError(
                f"-f gives the whole job: leave out {_spelled(also[0])}, or write it into the file"
            )
        return read_job(*_text_of(file), namespace=ref.namespace)
    if not flags["script"]:
        raise UsageError("submit what? Name a script of the image, or a manifest with -f")
    if not flags["image"]:
        raise UsageError(
            f"--image is missing: the pods run {flags['script']} from an image that holds it"
        )
    suffix = secrets.token_hex(_SUFFIX)
    name = flags["name"] or name_after(flags["script"], suffix, flags["module"])
    return make_job(Submission(**{**flags, "name": name, "namespace": ref.namespace}))


def _spelled(name: str) -> str:
    if name in ("script", "args"):
        return f"the {name}"
    names = {"low": "min", "high": "max", "nproc": "nproc-per-node", "endpoint": "rdzv-endpoint"}
    return f"--{names.get(name, name).replace('_', '-')}"


def _text_of(file: str) -> tuple[str, str]:
    if file == "-":
        return sys.stdin.read(), "standard input"
    try:
        return Path(file).read_text(), file
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{file} cannot be read: {why}") from None


def _print_object(job: Object, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(job, indent=2, ensure_ascii=False))
    else:
        text = need("yaml").safe_dump(job, sort_keys=False, allow_unicode=True)
        click.echo(text, nl=False)


def _wait(client: JobClient, made: Object) -> None:
    """Waits for the end of a job, and says what changes.

    Raises:
        TrainingFailed: it failed.
        UsageError: it was deleted.
    """
    name, said, began = made["metadata"]["name"], "", time.monotonic()
    try:
        for job in _until_over(client, name):
            if job is None:
                continue
            if job["metadata"].get("uid") != made["metadata"].get("uid"):
                raise NoSuchJob(f"{name} was deleted and submitted again by somebody else")
            line = job_line(job)
            if line.state == UNSEEN and time.monotonic() - began < _UNSEEN_FOR:
                continue
            if (text := _progress(line)) != said:
                click.echo(text, err=True)
                said = text
            if line.state == FAILED:
                raise TrainingFailed(f"{name} failed: {line.why}")
    except NoSuchJob:
        raise UsageError(f"{name} was deleted before it had ended") from None
    except KeyboardInterrupt:
        click.echo(f"{name} goes on; elasticctl status {name} shows it", err=True)
        raise


def _progress(line: JobLine) -> str:
    if line.state == UNSEEN:
        return f"{line.name}: no controller has taken notice of it yet: is one running?"
    trains = f", round {line.round} of {count(line.world or 0, 'worker')}" if line.round else ""
    why = f" ({line.why})" if line.why and not line.over else ""
    return f"{line.name}: {line.state}{trains}{why}"


# ---------------------------------------------------------------- look


@click.command()
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="of the whole cluster")
@click.option("--watch", is_flag=True, help="go on until interrupted")
@_INTERVAL
@FORMAT
@cluster_options
def jobs(ref: ClusterRef, everywhere: bool, watch: bool, interval: float, form: str) -> None:
    """Lists the jobs of a namespace."""
    client = _connect(ref)

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
        for now in _again(look, lines, interval):
            if now is not None and now != shown:
                click.echo(json.dumps([asdict(line) for line in now], ensure_ascii=False))
                shown = now
    else:
        with Live(console=console(), auto_refresh=False) as live:
            for now in _again(look, lines, interval):
                lines = lines if now is None else now
                live.update(screen.jobs(lines, time.time(), everywhere), refresh=True)


def show_status(ref: JobRef, form: str, watch: bool, interval: float) -> None:
    """Shows one job, once or until it ends.

    Args:
        ref: the job.
        form: ``table`` or ``json``.
        watch: go on until it ends.
        interval: seconds between two looks.
    """
    client = _connect(ref.cluster)
    report = _report(client, ref.name)
    if not watch:
        show(form, report.as_dict(), screen.status(report, time.time()))
        return
    looks = _again(lambda: _report(client, ref.name), report, interval, lambda now: now.line.over)
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
    client = _connect(ref.cluster)
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
@click.option("-f", "--follow", is_flag=True, help="go on until the job ends")
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
    client = _connect(ref)
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
        number = int("".join(filter(str.isdigit, line.pod)) or 0)
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
    client = _connect(ref.cluster)
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
    """Saves a checkpoint and removes all pods of JOB; resume goes on from there."""
    _set_suspended(ref, job, True)


@click.command()
@_JOB
@cluster_options
def resume(ref: ClusterRef, job: str) -> None:
    """Goes on with a JOB that was suspended."""
    _set_suspended(ref, job, False)


def _set_suspended(ref: ClusterRef, name: str, value: bool) -> None:
    client = _connect(ref)
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
    client = _connect(ref)
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

    for _ in _again(is_left, True, _POLL, lambda left: not left):
        pass


def _refuse_if_over(job: Object) -> None:
    line = job_line(job)
    if line.over:
        raise UsageError(f"{line.name} has {line.state} already: delete it, and submit another")


# ---------------------------------------------------------------- time and again


def _until_over(client: JobClient, name: str) -> Iterator[Object | None]:
    first = client.job(name)
    return _again(lambda: client.job(name), first, _POLL, lambda job: job_line(job).over)


def _again(
    look: Callable[[], _T],
    first: _T,
    interval: float,
    over: Callable[[_T], bool] = lambda now: False,
) -> Iterator[_T | None]:
    """What there is to see, time and again; None while the API server does not answer."""
    pause, now = threading.Event(), first
    yield now
    while not over(now):
        pause.wait(interval)
        try:
            now = look()
        except NotAllowed:
            raise
        except ClusterUnreachable:
            yield None
        else:
            yield now
