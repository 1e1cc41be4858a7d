"""What Slurm shows of a job, as ``scontrol show job`` prints it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from elastic_runtime.cli.slurm.host_list import expand_hosts
from elastic_runtime.cli.slurm.slurm_calls import SlurmRefused, call_slurm
from elastic_runtime.errors import UsageError

# Of an element of an array as well: 17_3, or 17_[3-7] of those that wait.
_ID = re.compile(r"([1-9][0-9]{0,17})(?:_[0-9\[\],%-]{1,99})?")
_FIELD = re.compile(r"\b(\w+)=(\S*)")
# What stands in the place of a host that there is not, or no more.
_NONE = ("", "(null)", "n/a", "None")


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
    found = _ID.fullmatch(job)
    if not found:
        raise UsageError(f"{job!r} is no id of a job of Slurm's: squeue lists them")
    try:
        text = call_slurm("scontrol", "--oneliner", "show", "job", found[1])
    except SlurmRefused as error:
        if "Invalid job id" in str(error):
            raise UsageError(f"Slurm knows no job {job}, or has forgotten it") from None
        raise
    return read_shown(found[1], text)


def read_shown(job: str, text: str) -> ShownJob:
    """Reads what ``scontrol --oneliner show job`` prints, a line for each element: pure."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        fields.setdefault(name, value)
    found: list[str] = []
    for name in ("BatchHost", "NodeList"):
        if (hosts := fields.get(name, "")) not in _NONE:
            with suppress(ValueError):
                found.append(expand_hosts(hosts)[0])
    throttles = re.findall(r"\bArrayTaskThrottle=([0-9]{1,9})\b", text)
    return ShownJob(
        fields.get("ArrayJobId", job),  # an element has an id of its own as well
        fields.get("JobState", ""),
        next(iter(found), ""),
        "ArrayJobId" in fields,
        max(map(int, throttles), default=0),
    )
