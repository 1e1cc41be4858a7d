"""The batch script of a job under Slurm: pure.

It has one command, which takes the place of the shell: Slurm signals the batch script, and a shell
would end at once, with its job.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Seconds before the end of its time at which a job is asked to leave: enough for a save. Slurm may
# send the signal up to a minute early.
DEFAULT_SIGNAL = "USR1@120"
_EARLY = 60
_USUAL_LEAD = 60  # seconds, if a signal names none
_INDICES = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
_SIGNAL = re.compile(r"([RB]{1,2}:)?(SIG)?[A-Z0-9]+(@\d+)?")


@dataclass(frozen=True)
class BatchJob:
    """What a batch script is to say.

    Attributes:
        program: what runs ``elastic-run``.
        arguments: its options, the script and the script's arguments.
        script: what is trained, for the job's name.
        nodes: of an allocation; 0: the job is an array.
        array: the indices of its elements, as sbatch takes them; "": it is none.
        name: of the job; "" means: after the script.
        time: its limit, as sbatch takes it; "": the partition's.
        signal: what asks it to leave before the limit, as sbatch takes it; "": nothing does.
        requeue: it comes back after it was asked to leave.
        options: further options of sbatch, such as ``--partition=gpu``.
    """

    program: Sequence[str]
    arguments: Sequence[str]
    script: str
    nodes: int = 0
    array: str = ""
    name: str = ""
    time: str = ""
    signal: str = DEFAULT_SIGNAL
    requeue: bool = True
    options: Sequence[str] = ()


def batch_script(job: BatchJob) -> str:
    """The text of the script.

    Raises:
        UsageError: it could not be submitted.
    """
    _check(job)
    lines = [f"#SBATCH {option}" for option in _options(job)]
    return "\n".join(["#!/bin/bash", *lines, "", *_explained(job), f"exec {_command(job)}", ""])


def _check(job: BatchJob) -> None:
    if bool(job.array) == bool(job.nodes):
        raise UsageError(
            "give --nodes N (one allocation), or --array 0-7 (each element is a node, which comes "
            "and goes by itself)"
        )
    for flag, text, form, example in (
        ("--array", job.array, _INDICES, "0-7, or 0-7%4 for four at a time"),
        ("--time", job.time, _TIME, "30 (minutes), 2:00:00 or 1-12"),
        ("--signal", job.signal, _SIGNAL, DEFAULT_SIGNAL),
    ):
        if text and not form.fullmatch(text):
            raise UsageError(f"{flag}={text!r} is not of the form of {example}")
    lead = int(job.signal.partition("@")[2] or _USUAL_LEAD) if job.signal else 0
    if job.time and job.signal and seconds_of(job.time) <= lead + _EARLY:
        # It would be asked to leave when it starts, and be queued again, for ever.
        raise UsageError(
            f"--time={job.time} is too short for --signal={job.signal}: Slurm sends that {lead} s "
            f"before the limit, and up to {_EARLY} s earlier; give less, such as --signal=USR1@10, "
            'or --signal="" for none'
        )
    for option in job.options:
        if not option.startswith("-") or "\n" in option:
            raise UsageError(
                f"--sbatch={option!r} is no option of sbatch: write --sbatch=--qos=high"
            )


def seconds_of(time: str) -> int:
    """How long a limit is, such as ``30`` (minutes), ``2:00:00`` or ``1-12`` (days, hours): pure.

    See ``--time`` of sbatch(1).
    """
    days, dash, rest = time.rpartition("-")
    units = [3600, 60, 1] if dash or rest.count(":") == 2 else [60, 1]
    parts = zip(map(int, rest.split(":")), units, strict=False)
    return int(days or 0) * 86400 + sum(number * unit for number, unit in parts)


def _options(job: BatchJob) -> Iterator[str]:
    yield f"--job-name={job.name or PurePath(job.script).stem or 'train'}"
    if job.array:
        yield f"--array={job.array}"
        yield "--nodes=1"
        yield "--output=slurm-%A_%a.out"
    else:
        yield f"--nodes={job.nodes}"
        yield "--output=slurm-%j.out"
        yield "--no-kill"
    yield "--ntasks-per-node=1"
    yield "--open-mode=append"
    yield "--requeue" if job.requeue else "--no-requeue"
    if job.time:
        yield f"--time={job.time}"
    if job.signal:
        yield f"--signal={job.signal}"
    yield from job.options


def _explained(job: BatchJob) -> Iterator[str]:
    if job.array:
        yield "# Each element is a node of the job: it joins when it starts, and leaves when it is"
        yield "# preempted or requeued. elasticctl scale --slurm JOB N says how many run at a time."
    else:
        yield "# elastic-run starts itself on every node with srun. A node that dies takes no other"
        yield "# along; the job ends with what the training has come to."


def _command(job: BatchJob) -> str:
    own = ["--slurm", "array" if job.array else "job", *(["--requeue"] if job.requeue else [])]
    return shlex.join([*job.program, *own, *job.arguments])
