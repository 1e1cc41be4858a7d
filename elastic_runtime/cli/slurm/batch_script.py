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
_MOST = 1_000_000  # elements
# Options of sbatch that have their own place here.
_OWN = ("--time", "-t", "--array", "-a", "--nodes", "-N", "--signal", "--job-name", "-J")
_USUAL_LEAD = 60  # seconds, if a signal names none
_INDICES = re.compile(r"[0-9]{1,7}(-[0-9]{1,7}(:[1-9][0-9]{0,6})?)?")
_TIME = re.compile(r"([0-9]{1,6}-)?[0-9]{1,6}(:[0-9]{1,6}){0,2}")
_UNLIMITED = ("0", "UNLIMITED", "INFINITE")
# A batch script passes on to the nodes what Slurm sends to it alone (B:), if it is USR1 or USR2.
_SIGNAL = re.compile(
    r"((R?B|BR):(SIG)?USR[12]|(R:)?(SIG)?(USR[12]|TERM|INT|HUP|QUIT))(@[0-9]{1,5})?", re.IGNORECASE
)


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
            "give one of --nodes N (one allocation) and --array 0-7 (each element is a node, which "
            "comes and goes by itself)"
        )
    limited = bool(job.time) and job.time.upper() not in _UNLIMITED
    for flag, text, fits, example in (
        ("--array", job.array, elements_in(job.array), "0-7, or 0-7%4 for four at a time"),
        ("--time", job.time, not limited or _TIME.fullmatch(job.time), "30 (minutes) or 1-12"),
        ("--signal", job.signal, _SIGNAL.fullmatch(job.signal), f"{DEFAULT_SIGNAL} or B:USR1@60"),
    ):
        if text and not fits:
            raise UsageError(f"{flag}={text!r} is not of the form of {example}")
    lead = int(job.signal.partition("@")[2] or _USUAL_LEAD) if job.signal else 0
    if limited and job.signal and seconds_of(job.time) <= lead + _EARLY:
        # It would be asked to leave when it starts, and be queued again, for ever.
        raise UsageError(
            f"--time={job.time} is too short for --signal={job.signal}: Slurm sends that {lead} s "
            f"before the limit, and up to {_EARLY} s earlier; give less, such as --signal=USR1@10, "
            'or --signal="" for none'
        )
    _check_texts(job)


def _check_texts(job: BatchJob) -> None:
    for option in job.options:
        if not option.startswith("-"):
            raise UsageError(
                f"--sbatch={option!r} is no option of sbatch: write --sbatch=--qos=high"
            )
        if option.partition("=")[0] in _OWN:
            raise UsageError(f"--sbatch={option}: write {option}, which is checked")
    for text in (job.name, job.script, *job.options):
        if '"' in text or not text.isprintable():
            raise UsageError(f"{text!r} cannot stand in a batch script")


def elements_in(array: str) -> int:
    """How many elements an array has, such as ``0-7%4`` or ``1,3,5-9:2``; 0: that is none. Pure.

    See ``--array`` of sbatch(1).
    """
    indices, percent, most = array.partition("%")
    if percent and not re.fullmatch(r"[1-9][0-9]{0,6}", most):
        return 0
    found: set[int] = set()
    for one in indices.split(","):
        if not _INDICES.fullmatch(one):
            return 0
        span, _, every = one.partition(":")
        first, _, last = span.partition("-")
        if not 0 <= int(last or first) - int(first) <= _MOST:
            return 0
        found |= {*range(int(first), int(last or first) + 1, int(every or 1))}
    return len(found)


def seconds_of(time: str) -> int:
    """How long a limit is, such as ``30`` (minutes), ``2:00:00`` or ``1-12`` (days, hours): pure.

    See ``--time`` of sbatch(1).
    """
    days, dash, rest = time.rpartition("-")
    units = [3600, 60, 1] if dash or rest.count(":") == 2 else [60, 1]
    parts = zip(map(int, rest.split(":")), units, strict=False)
    return int(days or 0) * 86400 + sum(number * unit for number, unit in parts)


def _options(job: BatchJob) -> Iterator[str]:
    yield _quoted(f"--job-name={job.name or PurePath(job.script).stem or 'train'}")
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
    yield from map(_quoted, job.options)


def _quoted(option: str) -> str:
    """As sbatch reads it in a script: what has spaces, in quotes."""
    name, equals, value = option.partition("=")
    return f'{name}{equals}"{value}"' if any(char.isspace() for char in option) else option


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
