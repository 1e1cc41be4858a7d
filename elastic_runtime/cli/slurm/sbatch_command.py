"""``elasticctl sbatch``: writes the batch script of an elastic job, and submits it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elastic_runtime.cli.flags.flag_parser import Parser
from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.setting_sources import Level, read_settings
from elastic_runtime.cli.slurm.batch_script import (
    DEFAULT_SIGNAL,
    BatchJob,
    batch_script,
    elements_in,
)
from elastic_runtime.cli.slurm.slurm_calls import call_slurm
from elastic_runtime.endpoint import ETCD, parse_endpoint
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("--nodes", type=click.IntRange(1), help="one allocation of so many nodes")
@click.option("--array", default="", metavar="0-7[%N]", help="each element is a node; N at a time")
@click.option("--time", default="", help="limit, as sbatch takes it")
@click.option(
    "--signal",
    default=DEFAULT_SIGNAL,
    show_default=True,
    help='what asks the job to leave before its limit; "": nothing does',
)
@click.option("--job-name", default="", help="default: the script's name")
@click.option(
    "--no-requeue", is_flag=True, help="it does not come back after it was asked to leave"
)
@click.option(
    "--sbatch",
    "options",
    multiple=True,
    metavar="OPTION",
    help="another option of sbatch, such as --sbatch=--partition=gpu; may be repeated",
)
@click.option("--submit", is_flag=True, help="submit it; without this it is only printed")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[ELASTIC-RUN OPTIONS] SCRIPT")
def sbatch(
    nodes: int | None,
    array: str,
    time: str,
    signal: str,
    job_name: str,
    no_requeue: bool,
    options: Sequence[str],
    submit: bool,
    command: Sequence[str],
) -> None:
    """Prints the batch script of an elastic job under Slurm, or submits it.

    The options of sbatch come first, then those of elastic-run, then SCRIPT with its arguments.
    """
    script = _script_of(command, nodes or elements_in(array), array=bool(array))
    job = BatchJob(
        program=_program(),
        arguments=command,
        script=script,
        nodes=nodes or 0,
        array=array,
        name=job_name,
        time=time,
        signal=signal,
        requeue=not no_requeue,
        options=options,
    )
    text = batch_script(job)
    if not submit:
        click.echo(text, nl=False)
        return
    number = call_slurm("sbatch", "--parsable", stdin=text).strip().partition(";")[0]
    click.echo(f"submitted job {number}")


# What may be taken for options of elastic-run: those of this command, and of sbatch.
_OWN = ("--submit", "--nodes", "--array", "--time", "--signal", "--job-name", "--sbatch")
_OF_SBATCH = ("--partition", "--qos", "--account", "--gres", "--mem", "--cpus-per-task")


def _program() -> list[str]:
    beside = Path(sys.executable).with_name("elastic-run")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "elastic_runtime"]


def _script_of(command: Sequence[str], size: int, *, array: bool) -> str:
    """What is trained, after a look at what would fail only when the job starts.

    Args:
        command: of ``elastic-run``.
        size: how many nodes the job has at most; 0: that is not known.
        array: it is one.

    Raises:
        UsageError: the options of elastic-run are wrong, or the script is not there.
    """
    parser = Parser()
    try:
        line = parser.split(command)
    except UsageError:
        for word, following in zip(command, [*command[1:], ""], strict=True):
            name = word.partition("=")[0]
            if name in _OWN:
                raise UsageError(f"{name} belongs before the options of elastic-run") from None
            if name in _OF_SBATCH:
                whole = word if "=" in word else f"{word}={following}"
                how = f"as --sbatch={whole}, before those of elastic-run"
                raise UsageError(f"{name} is an option of sbatch: write it {how}") from None
        raise
    settings = read_settings(parser.options, line.given, os.environ)
    for dest in ("local_nodes", "standalone", "slurm", "hosts", "discover"):
        if settings.of(dest).level is Level.FLAG:
            raise UsageError(f"{settings.of(dest)}: it is Slurm that says which nodes there are")
    where = settings.of("node_topology")
    if where.given and size != 1:
        raise UsageError(
            f"{where} is about one node: leave it out, or have a file on each say it "
            "(--node-topology-file)"
        )
    low = read_bounds(settings).low
    if size and low > size:
        raise UsageError(f"a job of at least {low} nodes has no room in {size}")
    text, backend = settings["rdzv_endpoint"], settings["rdzv_backend"]
    backend = backend if settings.given("rdzv_backend") else ""
    if array and (not text or parse_endpoint(text, backend).backend != ETCD):
        raise UsageError(
            "--array: any element may start first, or be the only one, so none can host the store: "
            "name an etcd with --rdzv-endpoint"
        )
    if not (settings["module"] or settings["no_python"]) and not Path(line.script).is_file():
        raise UsageError(f"there is no script {line.script!r} here")
    return line.script
