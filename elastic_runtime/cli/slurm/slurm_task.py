"""What a task of Slurm's learns from its environment: pure.

The variables are those of ``srun(1)`` and ``sbatch(1)``, section OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.cli.slurm.host_list import expand_hosts
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import MAX_TOPOLOGY_LEVELS
from elastic_runtime.topology import topology_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names of jobs in which a person types commands: what is started there is no task of the job's.
_SHELLS = ("bash", "sh", "zsh", "fish", "tcsh", "interactive")
# SLURM_STEP_TASKS_PER_NODE: "2(x3),1", by node in order.
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class SlurmTask:
    """One task of a step, or a batch script.

    Attributes:
        job: id of the job; of an array's element, its own.
        nodes: the hosts of the step, in order; of the job, in a batch script.
        node: the name of this one.
        job_nodes: how many nodes the job has.
        tasks_here: how many tasks of the step run on this node.
        in_step: ``srun`` has started it; if not, this is a batch script.
        step: which step of the job that is, from 0.
        array: id of the array; 0: the job is no element of one.
        index: of this element in its array.
        elements: how many the array has.
        restarts: how often the job, or this element, has been queued again.
        topology: the switches or blocks above the node, the farthest first; none: not known.
    """

    job: int
    nodes: tuple[str, ...]
    node: str
    job_nodes: int
    tasks_here: int = 1
    in_step: bool = True
    step: int = 0
    array: int = 0
    index: int = 0
    elements: int = 0
    restarts: int = 0
    topology: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As ``scontrol`` takes it: ``17``, or ``17_3`` for an element of an array."""
        return f"{self.array}_{self.index}" if self.array else str(self.job)


def is_task(environ: Mapping[str, str], pid: int, *, typed: bool = False) -> bool:
    """Whether a process is one of a job's own, and not started by a person inside of one.

    Args:
        environ: its environment.
        pid: its id.
        typed: its input is a terminal.
    """
    if not environ.get("SLURM_JOB_ID") or not environ.get("SLURM_PROCID"):
        return False
    if environ.get("SLURM_TASK_PID") == str(pid):
        return True
    several = environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return not typed and (several or environ.get("SLURM_JOB_NAME") not in _SHELLS)


def read_task(environ: Mapping[str, str]) -> SlurmTask:
    """Reads the environment of a task.

    Raises:
        UsageError: it lacks what every task has, or a variable is not what it should be.
    """
    if _number(environ, "SLURM_HET_SIZE", 1) > 1:
        raise UsageError(
            "a heterogeneous job has components with nodes of their own, and no list of all: "
            "submit one that is none, or an array"
        )
    in_step = bool(environ.get("SLURM_STEP_ID"))
    nodes = _hosts(environ, "SLURM_STEP_NODELIST" if in_step else "SLURM_JOB_NODELIST")
    place = _number(environ, "SLURM_NODEID", 0)
    node = environ.get("SLURMD_NODENAME") or nodes[min(place, len(nodes) - 1)]
    return SlurmTask(
        job=_number(environ, "SLURM_JOB_ID"),
        nodes=nodes,
        node=node,
        job_nodes=_number(environ, "SLURM_JOB_NUM_NODES", len(nodes)),
        tasks_here=_tasks_of(environ.get("SLURM_STEP_TASKS_PER_NODE", "1"), place),
        in_step=in_step,
        step=_number(environ, "SLURM_STEP_ID", 0),
        array=_number(environ, "SLURM_ARRAY_JOB_ID", 0),
        index=_number(environ, "SLURM_ARRAY_TASK_ID", 0),
        elements=_number(environ, "SLURM_ARRAY_TASK_COUNT", 0),
        restarts=_number(environ, "SLURM_RESTART_COUNT", 0),
        topology=_topology(environ),
    )


def _number(environ: Mapping[str, str], variable: str, default: int | None = None) -> int:
    text = environ.get(variable, "")
    if not text and default is not None:
        return default
    if not text:
        raise UsageError(f"this is no task of Slurm's: {variable} is not set")
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{variable}={text[:40]!r} is no number")
    return int(text)


def _hosts(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    text = environ.get(variable, "")
    if text in ("", "(null)"):
        raise UsageError(f"this is no task of Slurm's: {variable} is not set")
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise UsageError(f"{variable}: {error}") from None


def _topology(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What ``SLURM_TOPOLOGY_ADDR`` says above the node: ``s0.s4.n7`` is n7 at s4, below s0.

    ``SLURM_TOPOLOGY_ADDR_PATTERN`` (``switch.switch.node``) says how many levels there are, as the
    name of a node may have dots. Levels that are too many are the nearest ones; what is no
    topology of ours, from a plugin that is not known here, is none: no job ends for it.
    """
    address = environ.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    dots = len(pattern) - 1 if pattern[-1] == "node" else -1
    levels = tuple(address.split(".", dots)[:-1])[:MAX_TOPOLOGY_LEVELS]
    return () if topology_problem(levels) else levels


def _tasks_of(text: str, place: int) -> int:
    """The entry of a node in a list such as ``2(x3),1``; 1 if there is none."""
    for found in _TASKS.finditer(text):
        place -= int(found[2] or 1)
        if place < 0:
            return int(found[1])
    return 1
