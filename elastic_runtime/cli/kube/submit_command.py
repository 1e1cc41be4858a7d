"""``elasticctl submit``: makes a job of a command line or a manifest, and may wait for its end."""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elastic_runtime.cli.kube.build_job import (
    Submission,
    make_job,
    name_after,
    parse_job,
    parse_pod,
)
from elastic_runtime.cli.kube.command_options import cluster_options, connect
from elastic_runtime.cli.kube.job_client import JobClient, NoSuchJob
from elastic_runtime.cli.kube.job_report import FAILED, UNSEEN, JobLine, job_line
from elastic_runtime.cli.kube.job_watch import until_over
from elastic_runtime.errors import TrainingFailed, UsageError
from elastic_runtime.kubernetes.cluster_access import ClusterRef, need
from elastic_runtime.limits import UNNOTICED_JOB
from elastic_runtime.reporting.wording import count

if TYPE_CHECKING:
    from elastic_runtime.cli.kube.job_client import Object

_SUFFIX = 3  # random bytes in a name that is made of the script's
_COUNT = click.IntRange(1)


class _Submit(click.Command):
    """Says where the script's own options belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = f"{error.message} Options of the script come after --."
            raise click.NoSuchOption(error.option_name, advice, error.possibilities, ctx) from None


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
@click.option(
    "--max-restarts", type=click.IntRange(0), help="restarts after failures of the script"
)
@click.option("--rdzv-endpoint", "endpoint", default="", help="an etcd; the job gets one otherwise")
@click.option("--queue", default="", help="of Kueue: the pods wait there for quota")
@click.option("--pod-spec", help="a file with what else pods have; it is merged into theirs")
@click.option("--dry-run", is_flag=True, help="only print the job")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="print the job")
@click.option("--wait", is_flag=True, help="until the job ends; 1 if it fails")
@cluster_options
def submit(
    ref: ClusterRef, file: str | None, dry_run: bool, output: str | None, wait: bool, **flags: Any
) -> None:
    """Starts SCRIPT, with its ARGS, as an elastic job on a cluster.

    SCRIPT is a path inside the image, not on this machine. Write -- before ARGS that begin with a
    dash. What has no flag here goes into --pod-spec, or into a manifest: print one with --dry-run,
    and submit it with -f.
    """
    job = _job_of(ref, file, flags)
    if dry_run:
        _print_object(job, output or "yaml")
        return
    client = connect(ref)
    client.check(job)
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
        return parse_job(*_text_of(file), namespace=ref.namespace)
    if not flags["script"]:
        raise UsageError("submit what? Name a script of the image, or a manifest with -f")
    if not flags["image"]:
        raise UsageError(
            f"--image is missing: the pods run {flags['script']} from an image that holds it"
        )
    suffix = secrets.token_hex(_SUFFIX)
    name = flags["name"] or name_after(flags["script"], suffix, flags["module"])
    pod = flags["pod_spec"] and parse_pod(*_text_of(flags["pod_spec"]))
    said = {**flags, "pod_spec": pod or {}, "name": name, "namespace": ref.namespace}
    return make_job(Submission(**said))


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
        for job in until_over(client, name):
            if job is None:
                continue
            if job["metadata"].get("uid") != made["metadata"].get("uid"):
                raise NoSuchJob(f"{name} was deleted and submitted again by another user")
            line = job_line(job)
            if line.state == UNSEEN and time.monotonic() - began < UNNOTICED_JOB:
                continue
            if (text := _progress(line)) != said:
                click.echo(text, err=True)
                said = text
            if line.state == FAILED:
                raise TrainingFailed(f"{name} failed: {line.why}")
    except NoSuchJob:
        raise UsageError(f"{name} was deleted before it had ended") from None
    except KeyboardInterrupt:
        click.echo(f"{name} keeps running; elasticctl status {name} shows it", err=True)
        raise


def _progress(line: JobLine) -> str:
    if line.state == UNSEEN:
        return f"{line.name}: no controller has taken notice of it yet: is one running?"
    trains = f", round {line.round} of {count(line.world or 0, 'worker')}" if line.round else ""
    why = f" ({line.why})" if line.why and not line.over else ""
    return f"{line.name}: {line.state}{trains}{why}"
