"""``elasticctl sbatch``: writes the batch script of an elastic job, and submits it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elastic_runtime.cli.flags.flag_parser import Parser
from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.slurm.batch_script import DEFAULT_SIGNAL, BatchJob, batch_script
from elastic_runtime.cli.slurm.slurm_calls import call_slurm
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
    script = _script_of(command, array=bool(array))
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


def _program() -> list[str]:
    beside = Path(sys.executable).with_name("elastic-run")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "elastic_runtime"]


def _script_of(command: Sequence[str], *, array: bool) -> str:
    """What is trained, after a look at what would fail only when the job starts.

    Raises:
        UsageError: the options of elastic-run are wrong, or the script is not there.
    """
    parser = Parser()
    line = parser.split(command)
    settings = read_settings(parser.options, line.given, os.environ)
    if array and not settings.given("rdzv_endpoint"):
        raise UsageError(
            "--array: any element may start first, or be the only one, so none can host the store: "
            "name an etcd with --rdzv-endpoint"
        )
    if not (settings["module"] or settings["no_python"]) and not Path(line.script).is_file():
        raise UsageError(f"there is no script {line.script!r} here")
    return line.script
