"""What Slurm shows of a job, as ``scontrol show job`` prints it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_runtime.cli.slurm.host_list import expand_hosts
from elastic_runtime.cli.slurm.slurm_calls import call_slurm
from elastic_runtime.errors import UsageError

_FIELD = re.compile(r"\b(\w+)=(\S*)")
# What stands in the place of a host that there is not, or no more.
_NONE = ("", "(null)", "n/a")


@dataclass(frozen=True)
class ShownJob:
    """A job of Slurm's.

    Attributes:
        job: its id.
        state: as Slurm says it; of an array, of its first element.
        host: where its batch script runs; "": nowhere now.
        is_array: it is an array.
        throttle: how many elements of the array run at a time, at most; 0: all.
    """

    job: str
    state: str = ""
    host: str = ""
    is_array: bool = False
    throttle: int = 0


def show_job(job: str) -> ShownJob:
    """Asks Slurm for a job.

    Raises:
        UsageError: that is no id of a job.
        SlurmRefused: Slurm does not know it, or does not answer.
    """
    if not job.isdecimal():
        raise UsageError(f"{job!r} is no id of a job of Slurm's: squeue lists them")
    return read_shown(job, call_slurm("scontrol", "--oneliner", "show", "job", job))


def read_shown(job: str, text: str) -> ShownJob:
    """Reads what ``scontrol --oneliner show job`` prints, a line for each element: pure."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        fields.setdefault(name, value)
    hosts = [fields.get(name, "") for name in ("BatchHost", "NodeList")]
    found = [expand_hosts(host)[0] for host in hosts if host not in _NONE]
    throttles = re.findall(r"\bArrayTaskThrottle=(\d+)", text)
    return ShownJob(
        job,
        fields.get("JobState", ""),
        next(iter(found), ""),
        "ArrayTaskId" in fields,
        max(map(int, throttles), default=0),
    )
