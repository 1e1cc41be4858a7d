"""``--slurm JOB``: a job of Slurm's in the place of a store and a run id."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from elastic_runtime.cli.printing import show
from elastic_runtime.cli.slurm.array_commands import read_array, scale_array
from elastic_runtime.cli.slurm.shown_job import ShownJob, show_job
from elastic_runtime.cli.slurm.slurm_calls import host_of
from elastic_runtime.cli.slurm.slurm_settings import port_of, run_of
from elastic_runtime.errors import ElasticError, StoreUnreachable, UsageError

# States in which no process of a job is left.
_OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE"),
    *("BOOT_FAIL", "PREEMPTED"),
)
_F = Callable[..., Any]
Values = dict[str, Any]


def or_slurm(of_array: Callable[[ShownJob, Values], bool]) -> Callable[[_F], _F]:
    """Adds ``--slurm JOB`` to a command that has the options of a store.

    Args:
        of_array: what is done if the job is an array, given the other values; returns whether the
            command is to go on with the run of the array, which is in a store that people name.
    """

    def decorate(command: _F) -> _F:
        @functools.wraps(command)
        def called(slurm_job: str | None, **values: Any) -> Any:
            if slurm_job is None:
                return command(**values)
            shown, own = show_job(slurm_job), values["rdzv_endpoint"]
            if not shown.is_array:
                _in_allocation(shown, values)
            elif not of_array(shown, values):
                return None
            values["run_id"] = values["run_id"] or run_of(shown.job)
            try:
                return command(**values)
            except (StoreUnreachable, UsageError) as error:
                if own or shown.is_array:
                    raise
                raise type(error)(_not_found(shown, error)) from None

        option = click.option("--slurm", "slurm_job", metavar="JOB", help="a job of Slurm's")
        decorated: _F = option(called)
        return decorated

    return decorate


def _in_allocation(shown: ShownJob, values: Values) -> None:
    """Finds the store that the batch script hosts, unless people name another one."""
    if values.get("job") is not None:
        raise UsageError(
            f"job {shown.job} is one allocation, and Slurm gives it no more nodes: "
            "--min and --max change its bounds; an array can be scaled"
        )
    if values["rdzv_endpoint"]:
        return
    if shown.state in _OVER:
        raise UsageError(
            f"job {shown.job} is {shown.state}: its output says how its training ended"
        )
    if not shown.host:
        raise UsageError(f"job {shown.job} is {shown.state or 'unknown'}, so it has no store now")
    values["rdzv_endpoint"] = f"c10d://{host_of(shown.host)}:{port_of(int(shown.job))}"


def _not_found(shown: ShownJob, error: ElasticError) -> str:
    """Why nothing is seen of a job that runs, as far as Slurm knows."""
    return (
        f"job {shown.job} is {shown.state}, but nothing is seen of it yet ({error}): its nodes are "
        "still starting, or its store is at another port, which the first line of its output says"
    )


def scaled_by_slurm(shown: ShownJob, values: Values) -> bool:
    """``scale``: Slurm runs more or fewer elements; ``--min`` and ``--max`` are for the run."""
    size = values["job"]
    if size is None and (values["low"] is not None or values["high"] is not None):
        return _is_in_store(shown, values)
    click.echo(scale_array(shown, int(size) if size and size.isdecimal() else None))
    return False


def shown_with_elements(shown: ShownJob, values: Values) -> bool:
    """``status``: which elements run; and the run, if people name its store."""
    report = read_array(shown)
    in_store = bool(values["rdzv_endpoint"])
    if not in_store or values["form"] != "json":
        show(values["form"], report.as_dict(), report.as_text())
    return in_store


def _is_in_store(shown: ShownJob, values: Values) -> bool:
    if not values["rdzv_endpoint"]:
        raise UsageError(
            f"job {shown.job} is an array: name the etcd in which its nodes meet with "
            "--rdzv-endpoint"
        )
    return True


def found_in_store(shown: ShownJob, values: Values) -> bool:
    """Any other command: all that there is to see is in the store."""
    return _is_in_store(shown, values)
